"""Training of the two small checkpoints of the embedded profile: tokenizer, data, loop (`scripts/train_tiny.py`)."""
