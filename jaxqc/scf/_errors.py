"""What is raised when a calculation fails."""


class ConvergenceError(RuntimeError):
    """The self-consistent field did not converge, or became NaN.

    Attributes:
        result: the unconverged `Result`, for inspection or as a guess for another attempt.
    """

    def __init__(self, message, result=None):
        super().__init__(message)
        self.result = result
