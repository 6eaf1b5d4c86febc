"""Temporary."""
from contextlib import contextmanager
class Writership:
    def __init__(self, store, surroundings): self._s=store; self.generation=0
    def acquire(self): pass
    def mint(self, floor, reason):
        g=max((self._s.read_json("gen.json") or {}).get("g",0), floor)+1
        self._s.replace_json("gen.json",{"g":g}); self.generation=g; return g
    def guard(self):
        @contextmanager
        def c(): yield
        return c()
    def announce(self): pass
    def progress(self, step): pass
    def check(self): pass
    def release(self): pass
