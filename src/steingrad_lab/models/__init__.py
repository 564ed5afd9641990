"""VAEs with one or several stochastic layers of bits (the paper's models) or of categories."""

from .elbo import ElboGradients as ElboGradients
from .elbo import elbo_and_grad as elbo_and_grad
from .likelihoods import BernoulliLikelihood as BernoulliLikelihood
from .likelihoods import GaussianLikelihood as GaussianLikelihood
from .networks import MLP as MLP
from .resnet import resnet_vae as resnet_vae
from .vae import VAE as VAE
from .vae import mlp_vae as mlp_vae
from .vae import reconstruct as reconstruct
from .vae import sample_images as sample_images
