"""L2: images and their labels: folders and other sources, COCO, label maps, transforms, loading."""
