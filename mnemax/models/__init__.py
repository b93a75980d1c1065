"""The decoder, its stages and blocks, decoding, and Hugging Face import and export."""
