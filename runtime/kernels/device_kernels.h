// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeviceKernels` is the table of kernels of an accelerator: those of the CUDA
// plugin, or the same functions of LibTorch's operators.

#include "tessera/runtime/kernels/cuda_registry.h"
#include "tessera/runtime/kernels/norm_arguments.h"

#include <cstddef>
#include <span>

namespace tessera::runtime {

struct PackSegment;

/// All work on the current stream of the current device and do not synchronize.
struct DeviceKernels {
  void (*update)(const UpdateShards& shards) = nullptr;
  /// @param sums as lamb_moments_cuda().
  void (*lamb_moments)(const LambShards& shards, double* sums) = nullptr;
  void (*pack)(
      std::span<const PackShard> shards,
      ElementType target_type,
      double factor,
      PackMode mode) = nullptr;
  void (*blocks)(const BlockArrays& arrays) = nullptr;
  NormOperator* norm = nullptr; ///< tessera::mixed_norm
  NormBackwardOperator* norm_backward = nullptr;
  void (*add_bias)(const BiasRows& rows) = nullptr;
  void (*column_sums)(const ColumnSums& sums) = nullptr;
  void (*copy_rows)(const RowCopy& rows) = nullptr;
  /// Whether the current stream is being recorded for a CUDA graph; null:
  /// never.
  bool (*is_capturing)() = nullptr;
};

/// Takes over the members that are not null. The plugin calls it when it is
/// loaded.
void register_device_kernels(const DeviceKernels& kernels);

/// Those that have been registered.
const DeviceKernels& registered_kernels();

/// What the plugin gives tessera::mixed_norm and tessera::mixed_norm_backward
/// for its device, as update_cuda() is for updates.
NormOperator norm_cuda;
NormBackwardOperator norm_backward_cuda;

/// The same functions, composed of LibTorch's operators, for tensors of any
/// device; slower, with temporary tensors of a few MiB. They are as exact:
///
/// Updates apply the rules of update_rules.h to tensors. With float32 masters
/// they have the kernels' bits: +, -, *, / and sqrt round once in float32, and
/// fma once in float64, which holds the product, then to float32. (Where the
/// sum in float64 falls on the middle between two numbers of float32, once in
/// 2^29, the two roundings may differ from one.) With float64 masters, an fma
/// rounds twice. Sums of LAMB are in another order. Packing and the block
/// format and added biases have the kernels' bits, except that packing adds
/// with the operator add_(), which may round a product that is not exact. Norms
/// add in another order.
const DeviceKernels& operator_kernels();

namespace detail {

// Parts of operator_kernels().

/// One run of pack_segments_().
void pack_by_operators(
    const PackSegment& segment,
    double factor,
    PackMode mode);
void blocks_by_operators(const BlockArrays& arrays);
NormOperator norm_by_operators;
NormBackwardOperator norm_backward_by_operators;

} // namespace detail

} // namespace tessera::runtime
