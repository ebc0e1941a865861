"""Images: residual networks and vision transformers on CIFAR-10, digits or a folder of images."""

from elbowroom.science.vision.resnet import ResNet as ResNet
from elbowroom.science.vision.resnet import resnet18 as resnet18
from elbowroom.science.vision.resnet import resnet50 as resnet50
from elbowroom.science.vision.resnet import resnet_small as resnet_small
from elbowroom.science.vision.training import Images as Images
from elbowroom.science.vision.vit import ViT as ViT
from elbowroom.science.vision.vit import vit_cifar as vit_cifar
from elbowroom.science.vision.vit import vit_small as vit_small
