"""An ELBO for numpyro whose gradients for discrete sites come from steingrad's estimators."""

try:
    import numpyro as _numpyro  # noqa: F401
except ImportError as error:
    raise ImportError(
        "steingrad.numpyro needs numpyro, which could not be imported. Install it with "
        "`pip install 'steingrad[numpyro]'`."
    ) from error

from .elbo import ELBO as ELBO
from .elbo import SVI as SVI
