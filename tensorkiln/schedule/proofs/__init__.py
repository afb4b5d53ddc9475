"""Proofs that a change of order keeps all dependences; `legality.py` asks for them."""
