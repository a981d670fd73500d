"""L3: detection and segmentation with any of timm's models as the backbone."""
