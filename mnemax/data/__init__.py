"""Data: sources of documents, tokenizers, and packed batches."""
