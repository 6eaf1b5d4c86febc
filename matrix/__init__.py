"""
The matrix: what a resumed training ends with, compared bit for bit with one that was never interrupted.

Rows are framework x algorithm x environment (`matrix.rows`), trials are ways to be interrupted (`matrix.trials`). Every
part of a trial is a process of its own. ``python -m matrix`` runs rows and writes ``docs/matrix.json`` and the tables
of ``docs/matrix.md``.
"""
