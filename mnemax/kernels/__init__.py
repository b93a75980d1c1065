"""What layers compute with: attention behind one entry, `attend`; recurrences, means and quantisation beside it."""
