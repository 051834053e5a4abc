"""How to cite a run: the software, and the paper of the method that it used."""

from __future__ import annotations

from typing import Final

from polyclinic import __version__

PAPERS: Final = {
    "trip": """@inproceedings{kim2017trip,
  title = {Federated Tensor Factorization for Computational Phenotyping},
  author = {Kim, Yejin and Sun, Jimeng and Yu, Hwanjo and Jiang, Xiaoqian},
  booktitle = {Proceedings of the 23rd ACM SIGKDD International Conference on Knowledge Discovery and Data Mining},
  year = {2017}
}""",
    "dpfact": """@inproceedings{ma2019dpfact,
  title = {Privacy-Preserving Tensor Factorization for Collaborative Health Data Analysis},
  author = {Ma, Jing and Zhang, Qiuchen and Lou, Jian and Ho, Joyce C. and Xiong, Li and Jiang, Xiaoqian},
  booktitle = {Proceedings of the 28th ACM International Conference on Information and Knowledge Management},
  year = {2019}
}""",
    "localtf": """@mastersthesis{pan_localtf,
  title = {Communication Efficient Distributed Tensor Factorization based on Local SGD for Collaborative Health Data Analysis},
  author = {Pan, Zhangyi},
  school = {Emory University}
}""",
    "unpsl": """@inproceedings{huai2018unpsl,
  title = {Uncorrelated Patient Similarity Learning},
  author = {Huai, Mengdi and Miao, Chenglin and Suo, Qiuling and Li, Yaliang and Gao, Jing and Zhang, Aidong},
  booktitle = {Proceedings of the SIAM International Conference on Data Mining},
  year = {2018}
}""",
    "gaussianmixture": """@inproceedings{li2022privateem,
  title = {Privacy-Preserving Distributed Expectation Maximization for {G}aussian Mixture Model using Subspace Perturbation},
  author = {Li, Qiongxiu and Gundersen, Jaron S. and Tjell, Katrine and Wisniewski, Rafal and Christensen, Mads G.},
  booktitle = {IEEE International Conference on Acoustics, Speech and Signal Processing},
  year = {2022}
}""",
}


def bibtex(method: str) -> str:
    """BibTeX of the software and, where it has one, of the method's paper.

    >>> bibtex("dpem").splitlines()[0]
    '@software{polyclinic,'
    """
    software = f"""@software{{polyclinic,
  title = {{Polyclinic: federated, private phenotyping, patient similarity and mixtures}},
  author = {{{{The Polyclinic contributors}}}},
  version = {{{__version__}}}
}}"""
    return "\n\n".join([software, *([PAPERS[method.lower()]] if method.lower() in PAPERS else [])]) + "\n"
