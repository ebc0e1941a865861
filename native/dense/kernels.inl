// The dense codec of one instruction-set level; included once by each dense_<level>.cpp.

#include "quantise/quantise.inl"
//
#include "quantise/codes.inl"
//
#include "dense/rans.inl"
//
#include "dense/model.inl"
//
#include "dense/tables.inl"
//
#include "dense/chunk.inl"
//
#include "dense/log2.inl"
//
#include "dense/cost.inl"
