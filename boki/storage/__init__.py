"""The storage role: keeps batches, and reports what is durable."""
