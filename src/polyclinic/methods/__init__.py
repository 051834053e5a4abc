"""Phenotypes: central (CPALS, CPSGD) and federated (TRIP, DPFact, LocalTF, SumALS, DPEM); one file, one method."""
