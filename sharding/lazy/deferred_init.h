// SPDX-License-Identifier: Apache-2.0
#pragma once
// `DeferredInit` describes how to fill a tensor that has a shape but no memory
// yet. When a module is wrapped, each rank allocates and fills only its shard;
// the tensor never exists whole.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::sharding {

/// How the elements of a storage are initialized.
struct DeferredInit {
  /// Fills `slice` ([n], contiguous, of the storage's dtype and device) with
  /// elements [first_element, first_element + n) of the storage. May be called
  /// for any range, in any order, on any rank: the value of an element depends
  /// only on its index.
  std::function<void(const at::Tensor& slice, int64_t first_element)> fill;
  /// For error messages: a description or, if known, the name of the parameter.
  std::string name = "a tensor";
  /// Seeds of random values, if any. wrap() gives every rank the seeds of rank
  /// 0, so that their shards are slices of the same tensor.
  std::vector<std::shared_ptr<uint64_t>> seeds = {};
  /// Of files that values are read from, WeightFiles::identity(); must be the
  /// same on all ranks that fill parts of the tensor.
  std::string files_identity = {};
  /// A checksum of the names, dtypes and shapes in these files: where ranks
  /// with other parts of the model have files with the same, they must be the
  /// same.
  std::string files_contents = {};
  /// Of init_parameters(); must be the same on all ranks that fill parts of the
  /// tensor.
  std::optional<uint64_t> init_seed = {};
};

/// What must be the same on all ranks that fill parts of a tensor, for errors:
/// files, the seed of init_parameters(); empty: nothing but `seeds`.
std::string source_of(const DeferredInit& init);

/// Frees the storage's memory and attaches `init` in its place: nbytes does not
/// change, reading the storage is an error. `init` is destroyed with the
/// storage, or when the storage gets memory.
void set_deferred_init(c10::StorageImpl& storage, DeferredInit init);

/// Returns what set_deferred_init() was last given, or null if the storage has
/// memory. O(1).
DeferredInit* deferred_init(const c10::StorageImpl& storage);

/// Returns whether `tensor` has no memory yet.
bool is_deferred(const at::Tensor& tensor);

/// Makes a contiguous tensor without memory.
at::Tensor make_deferred(
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    DeferredInit init);

/// Allocates and fills a deferred tensor; does nothing for others.
void materialize_tensor(const at::Tensor& tensor);

} // namespace tessera::sharding
