"""The page of `transduct demo`: what a model makes of a text, where it looked, and how the search came to it.

- `settings.py`: what a visitor may choose, checked. `answers.py`: the model at work, for several visitors.
- `search_tree.py`: what a search kept at each step. `drawing.py`: SVG elements of any text.
- `attention_picture.py`, `alignment_picture.py`, `tree_picture.py`, `tables.py`: what the page shows, as SVG and HTML.
- `layout.py`: the page itself, the one file that knows gradio. `guard.py`: whom the server answers. `serving.py`: the server.

Pictures are plain functions of plain data, without script, font or file beside them, and every text in them is escaped.
"""
