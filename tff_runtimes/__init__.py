"""Runtimes for TensorFlow Federated."""

__version__ = '0.1.0'
