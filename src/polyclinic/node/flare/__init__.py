"""NVIDIA FLARE between hospitals: real processes, mutual TLS, studies instead of code.

Nothing here imports ``nvflare`` before it is needed, so the package works without the extra.

    enrolment   who takes part: the authority, keys born at the site, fingerprints; with invitation, joining, provisioning
    worker      a hospital's half of a study (``node.site.worker``) in one thread
    carry       the coordinator's half (``node.coordinator.coordinator``): its asks out, the answers back
    startup_files                       FLARE's own files, written so that a site refuses code
    controller, executor, launcher      the only classes that FLARE sees
    aligning    codes without a public list are agreed on before the first sum
    coordinator, jobs, site             the services: start, stop, run, watch; processes, session below them
"""
