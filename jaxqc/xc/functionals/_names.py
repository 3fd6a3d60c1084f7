"""Names of functionals and what they stand for."""

from jaxqc.xc.functionals._registry import COMPONENTS, COMPOSITES


def key(name):
    """One spelling of a name: lower case without hyphens and underscores."""
    return name.lower().replace("-", "").replace("_", "")


# Before the comma: exchange.
EXCHANGE = {
    "lda": "lda_x",
    "slater": "lda_x",
    "revpbe": "gga_x_pbe_r",
    "m06": "hyb_mgga_x_m06",
    "m062x": "hyb_mgga_x_m06_2x",
}
# After the comma: correlation.
CORRELATION = {
    "vwn5": "lda_c_vwn",
    "vwn3": "lda_c_vwn_rpa",  # as PySCF has it
    "pw92": "lda_c_pw_mod",
}
for _identifier in COMPONENTS:
    if "_xc_" in _identifier:
        continue
    _family = _identifier.removeprefix("hyb_").split("_", 2)
    if len(_family) == 3:
        {"x": EXCHANGE, "c": CORRELATION}[_family[1]].setdefault(key(_family[2]), _identifier)

# Names of one libxc functional, valid on both sides of the comma and without one.
SINGLE = {key(identifier): identifier for identifier in [*COMPONENTS, *COMPOSITES]}
SINGLE |= {key(i.split("_xc_", 1)[1]): i for i in [*COMPONENTS, *COMPOSITES] if "_xc_" in i}
SINGLE |= {
    "lda": "lda_x",
    "slater": "lda_x",
    "b88": "gga_x_b88",
    "vwn5": "lda_c_vwn",
    "vwn3": "lda_c_vwn_rpa",
    "vwnrpa": "lda_c_vwn_rpa",
    "b3lypg": "hyb_gga_xc_b3lyp",
    "x3lypg": "hyb_gga_xc_x3lyp",
    "pbe0": "hyb_gga_xc_pbeh",
    "pbe1pbe": "hyb_gga_xc_pbeh",
    "bhlyp": "hyb_gga_xc_bhandhlyp",
}
# Without a comma: exchange and correlation together.
COMPOUND = {
    "svwn": "slater,vwn",
    "svwn5": "slater,vwn",
    "svwn3": "slater,vwn3",
    "svwnrpa": "slater,vwn_rpa",
    "spw92": "slater,pw_mod",
    "pw92": "slater,pw_mod",
    "pbe": "pbe,pbe",
    "revpbe": "pbe_r,pbe",
    "rpbe": "rpbe,pbe",
    "pbesol": "pbe_sol,pbe_sol",
    "blyp": "b88,lyp",
    "bp86": "b88,p86",
    "bpbe": "b88,pbe",
    "scan": "scan,scan",
    "r2scan": "r2scan,r2scan",
    "tpss": "tpss,tpss",
    "m06l": "m06_l,m06_l",
    "m06": "hyb_mgga_x_m06,m06",
    "m062x": "hyb_mgga_x_m06_2x,m06_2x",
    "hflyp": "hf,lyp",
    "revpbe0": ".25*hf + .75*pbe_r, pbe",
    "tpss0": ".25*hf + .75*tpss, tpss",
}
# Names as people write them, for names() and for the suggestions at a misspelt one.
_DISPLAY = (
    "hf svwn svwn_rpa pw92 pbe revpbe rpbe pbesol blyp bp86 b3lyp b3lyp5 x3lyp bhandhlyp pbe0 tpss tpssh scan r2scan "
    "r2scan0 m06-l m06 m06-2x cam-b3lyp wb97x hse06 lc-wpbe"
).split()


def names():
    """Names of the functionals that jaxqc has itself, written in JAX.

    Returns a list of str. Any other name of PySCF's libxc is accepted as well and runs on the host.

    >>> from jaxqc.xc.functionals import names
    >>> "b3lyp" in names()
    True
    """
    return [n for n in _DISPLAY if n == "hf" or key(n) in SINGLE or key(n) in COMPOUND]
