"""Selected CI of the molecules with known energies: bound, perturbation theory and extrapolation against the reference.

    python experiments/nnqs_systems.py [--systems H2O N2 C2 C2H4O] [--size 16000] [--plot extrapolation.png]
    python experiments/nnqs_systems.py --fcidump Cr2.fcidump --reference -2086.44456 --natural 4000 4000 --size 1030000
        --growth 2 --epsilon 5e-6 --memory 16

References, Hartree, all electrons in all orbitals: H2O, Olsen et al. (doi:10.1063/1.471518); C2 and N2, coordinate
descent FCI (doi:10.1021/acs.jctc.9b00138); C2H4O, the density matrix renormalisation group extrapolated to -151.1215,
uncertain to 0.2 mHartree. `--natural` turns orbitals into natural ones of selected CI of these sizes first, one after
the other, which strongly correlated molecules need.
"""

import argparse
import time
from pathlib import Path

import jaxqc
from jaxqc import nnqs

SYSTEMS = {
    "H2O": (
        "O 0 0 -0.004762593; H 0 0.80184232855 -0.56034446694; H 0 -0.80184232855 -0.56034446694",
        "cc-pvdz",
        -76.2418601,
    ),
    "N2": ("N 0 0 0; N 0 0 1.12079733", "cc-pvdz", -109.2821730),
    "C2": ("C 0 0 0; C 0 0 1.24253", "cc-pvdz", -75.7319604),
    "C2H4O": (
        "O 0 0 1.22901; C 0 0.733 0; C 0 -0.733 0; H 0.9231 1.2617 -0.2136; H -0.9231 1.2617 -0.2136; "
        "H 0.9231 -1.2617 -0.2136; H -0.9231 -1.2617 -0.2136",
        "sto-3g",
        -151.1215,
    ),
}


def run(name, ham, reference, options):
    """Prints the stages of one system, energies less the reference in mHartree."""
    start = time.perf_counter()
    for size in options.natural:
        ham = ham.rotate(nnqs.natural_orbitals(ham, size))
        print(f"{name:6s} natural orbitals of {size} configurations, {time.perf_counter() - start:.1f} s", flush=True)

    def show(point):
        bound, total = (1e3 * (e - reference) for e in (point.e_ci, point.e_ci + point.e_pt2))
        print(
            f"{name:6s} {point.size:8d} configurations  E_CI {point.e_ci:.6f} ({bound:+.3f})  E_PT2 {point.e_pt2:.6f}  "
            f"sum {total:+.3f}  <S^2> {point.spin_square:.4f}  {time.perf_counter() - start:.1f} s",
            flush=True,
        )

    limits = {"epsilon": options.epsilon, "growth": options.growth, "memory": int(options.memory * 2**30)}
    found = nnqs.selected_ci(ham, options.size, callback=show, **limits)
    off = 1e3 * (found.e_extrapolated - reference)
    print(
        f"{name:6s} extrapolated {found.e_extrapolated:.6f}, {off:+.3f} +- {1e3 * found.error:.3f} mHartree", flush=True
    )
    if options.plot:
        path = Path(options.plot)
        nnqs.plot(found, path.with_stem(f"{path.stem}_{name}"))


def main(options):
    if options.fcidump:
        run(Path(options.fcidump).stem, nnqs.Hamiltonian.from_fcidump(options.fcidump), options.reference, options)
        return
    for name in options.systems:
        atoms, basis, reference = SYSTEMS[name]
        ham = nnqs.Hamiltonian.from_molecule(jaxqc.Molecule(atoms, basis=basis))
        run(name, ham, reference, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS), help="which (default all)")
    parser.add_argument("--fcidump", help="integrals of another system")
    parser.add_argument("--reference", type=float, default=0.0, help="its energy, Hartree")
    parser.add_argument("--natural", type=int, nargs="*", default=[], help="sizes of selected CI for natural orbitals")
    parser.add_argument("--size", type=int, default=16000, help="configurations at the end (default 16000)")
    parser.add_argument("--growth", type=float, default=4.0, help="of the set in one stage (default 4)")
    parser.add_argument("--epsilon", type=float, default=1e-7, help="terms left out of E_PT2, Hartree (default 1e-7)")
    parser.add_argument("--memory", type=float, default=4.0, help="GiB for perturbation theory (default 4)")
    parser.add_argument("--plot", help="file of the figures; the name of the system is added")
    main(parser.parse_args())
