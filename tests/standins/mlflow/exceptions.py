"""The error of mlflow."""

__all__ = ["MlflowException"]


class MlflowException(Exception):
    def __init__(self, message: str, error_code: str = "INTERNAL_ERROR") -> None:
        super().__init__(message)
        self.error_code = error_code
