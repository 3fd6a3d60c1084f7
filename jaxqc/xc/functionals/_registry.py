"""Functionals by libxc identifier, and the names under which people know them."""

from functools import partial

from jaxqc.xc.functionals import gga_c, gga_x, lda, scan

# identifier: (kind, function of a Point giving the energy density).
COMPONENTS = {
    "lda_x": ("lda", lda.slater),
    "lda_c_vwn": ("lda", lda.vwn5),
    "lda_c_vwn_rpa": ("lda", lda.vwn_rpa),
    "lda_c_pw": ("lda", lda.pw92),
    "lda_c_pw_mod": ("lda", lda.pw92_mod),
    "lda_c_pz": ("lda", lda.pz),
    "gga_x_pbe": ("gga", gga_x.pbe),
    "gga_x_pbe_r": ("gga", gga_x.revpbe),
    "gga_x_rpbe": ("gga", gga_x.rpbe),
    "gga_x_pbe_sol": ("gga", gga_x.pbesol),
    "gga_x_b88": ("gga", gga_x.b88),
    "gga_x_pw91": ("gga", gga_x.pw91),
    "gga_c_pbe": ("gga", gga_c.pbe),
    "gga_c_pbe_sol": ("gga", gga_c.pbesol),
    "gga_c_lyp": ("gga", gga_c.lyp),
    "gga_c_p86": ("gga", gga_c.p86),
    "mgga_x_scan": ("mgga", scan.scan_x),
    "mgga_c_scan": ("mgga", scan.scan_c),
    "mgga_x_r2scan": ("mgga", scan.r2scan_x),
    "mgga_c_r2scan": ("mgga", scan.r2scan_c),
}

_B3 = ((0.08, "lda_x"), (0.72, "gga_x_b88"), (0.81, "gga_c_lyp"))
# identifier: (exact exchange as (factor, omega), local parts).
COMPOSITES = {
    "hyb_gga_xc_b3lyp": (((0.2, 0.0),), (*_B3, (0.19, "lda_c_vwn_rpa"))),
    "hyb_gga_xc_b3lyp5": (((0.2, 0.0),), (*_B3, (0.19, "lda_c_vwn"))),
    "hyb_gga_xc_x3lyp": (
        ((0.218, 0.0),),
        (
            (0.073, "lda_x"),
            (0.542385, "gga_x_b88"),
            (0.166615, "gga_x_pw91"),
            (0.871, "gga_c_lyp"),
            (0.129, "lda_c_vwn_rpa"),
        ),
    ),
    "hyb_gga_xc_bhandhlyp": (((0.5, 0.0),), ((0.5, "gga_x_b88"), (1.0, "gga_c_lyp"))),
    "hyb_gga_xc_pbeh": (((0.25, 0.0),), ((0.75, "gga_x_pbe"), (1.0, "gga_c_pbe"))),
    "hyb_mgga_xc_r2scan0": (((0.25, 0.0),), ((0.75, "mgga_x_r2scan"), (1.0, "mgga_c_r2scan"))),
}
# Exact exchange that goes with a component.
COMPONENT_EXCHANGE = {}
