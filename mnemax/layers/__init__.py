"""The five choices of an attention layer, and the layers around it."""
