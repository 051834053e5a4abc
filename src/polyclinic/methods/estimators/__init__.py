"""Estimators around the methods: ``fit(sites)``, and results in attributes that end in an underscore."""
