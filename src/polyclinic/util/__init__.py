"""Small tools without a subject of their own: whole files, JSON types, tables, threads."""
