"""Functionals by libxc identifier, and the names under which people know them."""

from functools import partial

from jaxqc.xc.functionals import attenuated, gga_c, gga_x, lda, m06, scan, tpss, wpbe

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
    "mgga_x_tpss": ("mgga", tpss.tpss_x),
    "mgga_c_tpss": ("mgga", tpss.tpss_c),
    "mgga_x_m06_l": ("mgga", m06.m06l_x),
    "mgga_c_m06_l": ("mgga", m06.m06l_c),
    "hyb_mgga_x_m06": ("mgga", m06.m06_x),
    "mgga_c_m06": ("mgga", m06.m06_c),
    "hyb_mgga_x_m06_2x": ("mgga", m06.m062x_x),
    "mgga_c_m06_2x": ("mgga", m06.m062x_c),
    "hyb_gga_xc_wb97x": ("gga", attenuated.wb97x),
    "gga_x_wpbeh": ("gga", partial(wpbe.wpbe, omega=0.0)),
    "gga_x_wpbeh(0.11)": ("gga", partial(wpbe.wpbe, omega=0.11)),
    "gga_x_wpbeh(0.4)": ("gga", partial(wpbe.wpbe, omega=0.4)),
    "gga_x_ityh(0.33)": ("gga", partial(attenuated.b88_short, omega=0.33)),
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
    "hyb_gga_xc_cam_b3lyp": (
        ((0.19, 0.0), (0.46, 0.33)),
        ((0.35, "gga_x_b88"), (0.46, "gga_x_ityh(0.33)"), (0.81, "gga_c_lyp"), (0.19, "lda_c_vwn")),
    ),
    "hyb_gga_xc_hse06": (
        ((0.25, 0.0), (-0.25, 0.11)),
        ((1.0, "gga_x_wpbeh"), (-0.25, "gga_x_wpbeh(0.11)"), (1.0, "gga_c_pbe")),
    ),
    "hyb_gga_xc_lc_wpbe": (((1.0, 0.4),), ((1.0, "gga_x_wpbeh(0.4)"), (1.0, "gga_c_pbe"))),
    "hyb_mgga_xc_tpssh": (((0.1, 0.0),), ((0.9, "mgga_x_tpss"), (1.0, "mgga_c_tpss"))),
    "hyb_mgga_xc_r2scan0": (((0.25, 0.0),), ((0.75, "mgga_x_r2scan"), (1.0, "mgga_c_r2scan"))),
}
# Exact exchange that goes with a component.
COMPONENT_EXCHANGE = {
    "hyb_mgga_x_m06": ((0.27, 0.0),),
    "hyb_mgga_x_m06_2x": ((0.54, 0.0),),
    "hyb_gga_xc_wb97x": ((0.157706, 0.0), (0.842294, 0.3)),
}
