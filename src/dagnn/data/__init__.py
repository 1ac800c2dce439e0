"""Datasets as JSON lines, and batches whose order is a pure function of (seed, epoch, level, rank)."""

from dagnn.data.batches import BatchIterator
from dagnn.data.dataset import Dataset
from dagnn.data.records import Record, read_records, write_records

__all__ = ["BatchIterator", "Dataset", "Record", "read_records", "write_records"]
