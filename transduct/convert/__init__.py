"""Checkpoints of other families: to ours and back, each conversion verified.

- `family.py` says what a family is; `t5.py` and its siblings are the families, `families.py` their list.
- `models.py` converts models in memory, `folders.py` checkpoints on disk, `verifying.py` compares both sides.
- `checkpoint.py` reads tensors one by one, `options.py` the other family's config.
"""
