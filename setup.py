"""Build fastmix.  `fastmix.kernels` is the folder kernels/, found through the symlink fastmix/kernels."""

from pathlib import Path

from setuptools import find_packages, setup

TORCH = ["torch"]
PLOT = ["matplotlib"]
PHOTOS = ["scikit-image", "scikit-learn"]
TENSORBOARD = ["tensorboard"]
DIFFUSION = ["accelerate", "diffusers", "peft", "pyarrow", "safetensors", "torch", "transformers"]
RAY = ["pyarrow", "ray[data]"]
WEBDATASET = ["webdataset"]
GPU = ["cupy-cuda13x", "numba-cuda[cu13]", "torch"]

setup(
    name="fastmix",
    version="0.1.0",
    description="Image mixing augmentation (PixMix, IPMix, LayerMix, AugMix, MixUp, CutMix) at the price of a crop",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["fastmix", "fastmix.*"]),
    package_data={"fastmix": ["py.typed"], "fastmix.kernels": ["cuda/*.cu"]},
    python_requires=">=3.11",
    install_requires=["numpy>=2.0,<2.6", "numba>=0.61", "pillow", "platformdirs", "simplejpeg", "tqdm"],
    extras_require={
        "torch": TORCH,
        "plot": PLOT,
        "demo": TORCH + PLOT + PHOTOS,
        "examples": TORCH + PLOT + TENSORBOARD,
        "diffusion": DIFFUSION,
        "ray": RAY,
        "gpu": GPU,
        "webdataset": WEBDATASET,
        "test": [
            *PLOT,
            *PHOTOS,
            *TENSORBOARD,
            *DIFFUSION,
            *RAY,
            *GPU,
            *WEBDATASET,
            "codespell",
            "grad-cam",
            "hypothesis",
            "mypy==2.4.1",
            "opencv-python-headless",
            "pre-commit",
            "psutil",
            "pytest",
            "pytest-benchmark",
            "pytest-timeout",
            "ruff==0.17.6",
            "scipy",
            "torch==2.14.1",
            "torchvision==0.29.1",
        ],
    },
    entry_points={"console_scripts": ["fastmix = fastmix.__main__:main"]},
)
