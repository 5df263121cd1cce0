// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/interception/operator_traits.h"

#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace tessera::sharding {

namespace {

// Operators that read or write only sizes, strides and flags. Composite ones
// that may copy (reshape, contiguous, to, flatten) are not among them: inside
// the fallback their inner operators are no longer seen.
const std::unordered_set<std::string>& metadata_operators() {
  static const std::unordered_set<std::string> names{
      "aten::_fw_primal",
      "aten::_is_zerotensor",
      "aten::_has_compatible_shallow_copy_type",
      "aten::_neg_view",
      "aten::_reshape_alias",
      "aten::_unsafe_view",
      "aten::_version",
      "aten::alias",
      "aten::as_strided",
      "aten::as_strided_",
      "aten::chunk",
      "aten::data",
      "aten::dense_dim",
      "aten::detach",
      "aten::detach_",
      "aten::diagonal",
      "aten::empty_like",
      "aten::expand",
      "aten::expand_as",
      "aten::is_floating_point",
      "aten::is_complex",
      "aten::is_leaf",
      "aten::is_same_size",
      "aten::is_pinned",
      "aten::is_set_to",
      "aten::mT",
      "aten::movedim",
      "aten::narrow",
      "aten::new_empty",
      "aten::new_empty_strided",
      "aten::new_full",
      "aten::new_ones",
      "aten::new_zeros",
      "aten::numpy_T",
      "aten::ones_like",
      "aten::output_nr",
      "aten::permute",
      "aten::requires_grad_",
      "aten::retain_grad",
      "aten::retains_grad",
      "aten::select",
      "aten::size",
      "aten::slice",
      "aten::split",
      "aten::split_with_sizes",
      "aten::squeeze",
      "aten::stride",
      "aten::swapaxes",
      "aten::swapdims",
      "aten::sym_numel",
      "aten::sym_size",
      "aten::sym_stride",
      "aten::sym_storage_offset",
      "aten::t",
      "aten::tensor_split",
      "aten::transpose",
      "aten::unbind",
      "aten::unflatten",
      "aten::unfold",
      "aten::unsqueeze",
      "aten::view",
      "aten::view_as",
      "aten::zeros_like",
      "aten::full_like",
      "aten::rand_like",
      "aten::randn_like",
      "aten::randint_like",
      "aten::record_stream",
      "aten::set_data",
  };
  return names;
}

OperatorKind classify(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  // zeros_like(x) accesses no element of x, but zeros_like.out writes to its
  // out.
  if (op.operator_name().overload_name.find("out") != std::string::npos) {
    return OperatorKind::kReadsData;
  }
  if (name == "aten::add_") {
    return OperatorKind::kInplaceAdd;
  }
  if (name == "aten::add") {
    return OperatorKind::kAdd;
  }
  if (name == "aten::zero_") {
    return OperatorKind::kInplaceZero;
  }
  return metadata_operators().count(name) ? OperatorKind::kMetadata
                                          : OperatorKind::kReadsData;
}

} // namespace

OperatorKind kind_of(const c10::OperatorHandle& op) {
  // An operator's schema object lives as long as the process.
  static std::shared_mutex mutex;
  static std::unordered_map<const void*, OperatorKind> cache;
  const void* key = &op.schema();
  {
    const std::shared_lock lock(mutex);
    const auto found = cache.find(key);
    if (found != cache.end()) {
      return found->second;
    }
  }
  const OperatorKind kind = classify(op);
  const std::unique_lock lock(mutex);
  cache.emplace(key, kind);
  return kind;
}

} // namespace tessera::sharding
