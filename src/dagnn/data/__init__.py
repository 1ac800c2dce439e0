"""Datasets as JSON lines, and batches whose order depends on seed, epoch, level and rank alone."""

from dagnn.data.batches import BatchIterator
from dagnn.data.dataset import Dataset, Record, read_records, write_records

__all__ = ["BatchIterator", "Dataset", "Record", "read_records", "write_records"]
