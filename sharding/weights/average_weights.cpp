// SPDX-License-Identifier: Apache-2.0
#include "tessera/sharding/weights/average_weights.h"

#include "tessera/runtime/core/error.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <string>

namespace tessera::sharding {

namespace {

double sum_of_factors(const std::vector<AveragedWeights>& sets) {
  double sum = 0;
  for (const AveragedWeights& set : sets) {
    sum += set.factor;
  }
  TESSERA_CHECK(
      std::isfinite(sum) && sum > 0,
      "average: the sum of the {} factors is {}; it must be above 0",
      sets.size(),
      sum);
  return sum;
}

/// @throws tessera::Error naming what one of two sets lacks, or has with
///   another shape.
void check_alike(const WeightFiles& first, const WeightFiles& other) {
  std::string differences;
  const auto note = [&](const std::string& line) {
    differences += "\n  " + line;
  };
  for (const auto& [name, entry] : first.entries()) {
    const WeightEntry* found = other.find(name);
    if (found == nullptr) {
      note(formatted("'{}' is only in the first", name));
    } else if (found->shape != entry.shape) {
      note(formatted(
          "'{}' is {} in the first and {} in the second",
          name,
          at::IntArrayRef(entry.shape),
          at::IntArrayRef(found->shape)));
    } else if (
        at::isFloatingType(loaded_dtype_of(name, entry.dtype)) !=
        at::isFloatingType(loaded_dtype_of(name, found->dtype))) {
      note(formatted(
          "'{}' is {} in the first and {} in the second",
          name,
          name_of(entry.dtype),
          name_of(found->dtype)));
    }
  }
  for (const auto& [name, entry] : other.entries()) {
    if (first.find(name) == nullptr) {
      note(formatted("'{}' is only in the second", name));
    }
  }
  TESSERA_CHECK(
      differences.empty(),
      "average: {} and {} are not of one model:{}",
      first.path(),
      other.path(),
      differences);
}

at::Tensor mean_of(
    const std::vector<AveragedWeights>& sets,
    const std::string& name,
    at::ScalarType dtype,
    double factors) {
  if (!at::isFloatingType(dtype)) {
    return loaded_tensor(*sets.back().files.find(name)).to(dtype);
  }
  at::Tensor sum;
  for (const AveragedWeights& set : sets) {
    const at::Tensor value =
        loaded_tensor(*set.files.find(name)).to(at::kDouble);
    if (!sum.defined()) {
      sum = at::zeros_like(value);
    }
    sum.add_(value, set.factor);
  }
  return sum.div_(factors).to(dtype);
}

} // namespace

void write_average(
    const std::vector<AveragedWeights>& sets,
    const std::filesystem::path& file) {
  TESSERA_CHECK(!sets.empty(), "average: there is nothing to average");
  const double factors = sum_of_factors(sets);
  const WeightFiles& first = sets.front().files;
  for (const AveragedWeights& set : sets) {
    check_alike(first, set.files);
  }
  std::vector<TensorSpec> specs;
  for (const auto& [name, entry] : first.entries()) {
    specs.push_back(
        full_spec({name}, entry.shape, loaded_dtype_of(name, entry.dtype)));
  }
  TensorFileWriter writer(file, specs);
  for (const TensorSpec& spec : specs) {
    writer.write(spec.name(), mean_of(sets, spec.name(), spec.dtype, factors));
  }
  writer.commit();
}

} // namespace tessera::sharding
