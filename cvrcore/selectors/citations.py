"""Where policies come from: a policy's name in, BibTeX of its sources out."""

from __future__ import annotations

from typing import Final

_CVRCORE: Final = """@software{cvrcore,
  title  = {cvrcore: client selection for federated learning},
  author = {{cvrcore contributors}},
  note   = {version %s},
}"""


def _entry(kind: str, key: str, **fields: str) -> str:
    width = max(map(len, fields))
    lines = "".join(f"  {name:<{width}} = {{{value}}},\n" for name, value in fields.items())
    return f"@{kind}{{{key},\n{lines}}}"


def _arxiv(key: str, title: str, author: str, number: str, year: str) -> str:
    return _entry("misc", key, title=title, author=author, year=year, eprint=number,
                  archiveprefix="arXiv")  # fmt: skip


def _paper(key: str, title: str, author: str, booktitle: str, year: str) -> str:
    return _entry("inproceedings", key, title=title, author=author, booktitle=booktitle, year=year)


def _article(key: str, title: str, author: str, journal: str, year: str) -> str:
    return _entry("article", key, title=title, author=author, journal=journal, year=year)


#: BibTeX entries of the sources of each built-in policy; policies of ours cite cvrcore too.
CITATIONS: Final[dict[str, tuple[str, ...]]] = {
    "uniform": (
        _paper(
            "mcmahan2017communication",
            "Communication-Efficient Learning of Deep Networks from Decentralized Data",
            "McMahan, Brendan and Moore, Eider and Ramage, Daniel and Hampson, Seth and "
            'Ag{\\"u}era y Arcas, Blaise',
            "International Conference on Artificial Intelligence and Statistics",
            "2017",
        ),
    ),
    "power-of-choice": (
        _paper(
            "cho2022towards",
            "Towards Understanding Biased Client Selection in Federated Learning",
            "Cho, Yae Jee and Wang, Jianyu and Joshi, Gauri",
            "International Conference on Artificial Intelligence and Statistics",
            "2022",
        ),
    ),
    "active": (
        _arxiv(
            "goetz2019active",
            "Active Federated Learning",
            "Goetz, Jack and Malik, Kshitiz and Bui, Duc and Moon, Seungwhan and Liu, Honglei "
            "and Kumar, Anuj",
            "1909.12641",
            "2019",
        ),
    ),
    "oort": (
        _paper(
            "lai2021oort",
            "Oort: Efficient Federated Learning via Guided Participant Selection",
            "Lai, Fan and Zhu, Xiangfeng and Madhyastha, Harsha V. and Chowdhury, Mosharaf",
            "USENIX Symposium on Operating Systems Design and Implementation",
            "2021",
        ),
    ),
    "fedcbs": (
        _paper(
            "zhang2023fedcbs",
            "Fed-CBS: A Heterogeneity-Aware Client Sampling Mechanism for Federated Learning "
            "via Class-Imbalance Reduction",
            "Zhang, Jianyi and Li, Ang and Tang, Minxue and Sun, Jingwei and Chen, Xiang and "
            "Zhang, Fan and Chen, Changyou and Chen, Yiran and Li, Hai",
            "International Conference on Machine Learning",
            "2023",
        ),
    ),
    "fedcvr-bolt": (
        _arxiv(
            "licciardi2025fedcvrbolt",
            "Tackling Heterogeneity in Federated Learning via Variance-Reduced Boltzmann "
            "Sampling within Homogeneous Social Coalitions",
            "Licciardi, Alessandro and Raineri, Roberta and Proskurnikov, Anton and Rondoni, "
            "Lamberto and Zino, Lorenzo",
            "2506.02897",
            "2025",
        ),
    ),
    "pivotal": (
        _article(
            "grafstrom2012spatially",
            "Spatially Balanced Sampling through the Pivotal Method",
            'Grafstr{\\"o}m, Anton and Lundstr{\\"o}m, Niklas L. P. and Schelin, Lina',
            "Biometrics",
            "2012",
        ),
        _CVRCORE,
    ),
    "drift": (_CVRCORE,),
    "optimal": (
        _article(
            "chen2022optimal",
            "Optimal Client Sampling for Federated Learning",
            "Chen, Wenlin and Horv{\\'a}th, Samuel and Richt{\\'a}rik, Peter",
            "Transactions on Machine Learning Research",
            "2022",
        ),
    ),
    "k-vib": (
        _arxiv(
            "zeng2023enhanced",
            "Enhanced Federated Optimization: Adaptive Unbiased Client Sampling with Reduced "
            "Variance",
            "Zeng, Dun and Xu, Zenglin and Pan, Yu and Luo, Xu and Wang, Qifan and Tang, Xiaoying",
            "2310.02698",
            "2023",
        ),
    ),
    "multinomial": (
        _paper(
            "li2020convergence",
            "On the Convergence of {FedAvg} on Non-{IID} Data",
            "Li, Xiang and Huang, Kaixuan and Yang, Wenhao and Wang, Shusen and Zhang, Zhihua",
            "International Conference on Learning Representations",
            "2020",
        ),
    ),
    "clustered": (
        _paper(
            "fraboni2021clustered",
            "Clustered Sampling: Low-Variance and Improved Representativity for Clients "
            "Selection in Federated Learning",
            "Fraboni, Yann and Vidal, Richard and Kameni, Laetitia and Lorenzi, Marco",
            "International Conference on Machine Learning",
            "2021",
        ),
    ),
    "reshuffle": (
        _arxiv(
            "malinovsky2023federated",
            "Federated Learning with Regularized Client Participation",
            "Malinovsky, Grigory and Horv{\\'a}th, Samuel and Burlachenko, Konstantin and "
            "Richt{\\'a}rik, Peter",
            "2302.03662",
            "2023",
        ),
    ),
    "divfl": (
        _paper(
            "balakrishnan2022diverse",
            "Diverse Client Selection for Federated Learning via Submodular Maximization",
            "Balakrishnan, Ravikumar and Li, Tian and Zhou, Tianyi and Himayat, Nageen and "
            "Smith, Virginia and Bilmes, Jeff",
            "International Conference on Learning Representations",
            "2022",
        ),
    ),
    "hics": (
        _paper(
            "chen2024heterogeneity",
            "Heterogeneity-Guided Client Sampling: Towards Fast and Efficient Non-{IID} "
            "Federated Learning",
            "Chen, Huancheng and Vikalo, Haris",
            "Advances in Neural Information Processing Systems",
            "2024",
        ),
    ),
    "fedcor": (
        _paper(
            "tang2022fedcor",
            "{FedCor}: Correlation-Based Active Client Selection Strategy for Heterogeneous "
            "Federated Learning",
            "Tang, Minxue and Ning, Xuefei and Wang, Yitu and Sun, Jingwei and Wang, Yu and "
            "Li, Hai and Chen, Yiran",
            "IEEE/CVF Conference on Computer Vision and Pattern Recognition",
            "2022",
        ),
    ),
    "shapley": (
        _article(
            "singhal2024greedy",
            "Greedy {Shapley} Client Selection for Communication-Efficient Federated Learning",
            "Singhal, Pranava and Pandey, Shashi Raj and Popovski, Petar",
            "IEEE Networking Letters",
            "2024",
        ),
        _paper(
            "nagalapatti2021game",
            "Game of Gradients: Mitigating Irrelevant Clients in Federated Learning",
            "Nagalapatti, Lokesh and Narayanam, Ramasuri",
            "AAAI Conference on Artificial Intelligence",
            "2021",
        ),
    ),
    "learned": (_CVRCORE,),
}


def bibtex(name: str) -> str:
    """Return the BibTeX entries to cite for a built-in policy.

    Examples
    --------
    >>> print(bibtex("optimal").partition(",")[0])
    @article{chen2022optimal
    """
    from .. import __version__

    if name not in CITATIONS:
        known = ", ".join(CITATIONS)
        raise ValueError(f"name must be a policy of cvrcore ({known}), got {name!r}")
    return "\n\n".join(entry.replace("%s", __version__) for entry in CITATIONS[name])
