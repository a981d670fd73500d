"""What runs without torch and timm: decoding images, the evaluation transform in numpy, exported classifiers."""
