"""Small tools without a subject of their own: atomic files, JSON types, tables, threads."""
