"""Datasets as JSON lines, and batches whose order is a pure function of (seed, epoch, level, rank)."""

from dagnn.data.batches import BatchIterator
from dagnn.data.dataset import Dataset
from dagnn.data.jsonl import read_records, write_records
from dagnn.data.record import Record

__all__ = ["BatchIterator", "Dataset", "Record", "read_records", "write_records"]
