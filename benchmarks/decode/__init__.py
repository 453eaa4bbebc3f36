"""Decoding: our program beside decoders written by hand, token by token at the middle of a text."""
