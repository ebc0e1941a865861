// The block codec of one instruction-set level; included once by each block_<level>.cpp.

#include "quantise/quantise.inl"
//
#include "quantise/codes.inl"
//
#include "predict/predict.inl"
//
#include "block/planes.inl"
//
#include "block/chunk.inl"
//
#include "quantise/extent.inl"
