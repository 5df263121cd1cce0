// SPDX-License-Identifier: Apache-2.0
// Means of weights, against float64.
#include "tessera/sharding/weights/average_weights.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <string>

namespace tessera::sharding::average_weights_test {

namespace {

using Tensors = std::map<std::string, at::Tensor>;

WeightFiles write(
    const TemporaryFolder& folder,
    const std::string& name,
    const Tensors& tensors) {
  std::vector<TensorSpec> specs;
  for (const auto& [key, value] : tensors) {
    specs.push_back(full_spec({key}, value.sizes().vec(), value.scalar_type()));
  }
  TensorFileWriter writer(folder / name, specs);
  for (const auto& [key, value] : tensors) {
    writer.write(key, value);
  }
  writer.commit();
  return WeightFiles::open(folder / name);
}

Tensors some_tensors(int64_t seed) {
  torch::manual_seed(seed);
  return {
      {"weight", torch::randn({3, 5})},
      {"half", torch::randn({7}).to(torch::kBFloat16)},
      {"count", torch::full({1}, seed, torch::kLong)}};
}

} // namespace

TEST(AverageWeights, AreThoseOfFloat64) {
  const TemporaryFolder folder;
  std::vector<Tensors> all;
  std::vector<AveragedWeights> sets;
  const std::vector<double> factors{1, 3, 0.5, -0.25};
  for (int64_t i = 0; i < 4; ++i) {
    all.push_back(some_tensors(i + 1));
    sets.push_back(
        {write(folder, std::to_string(i) + ".safetensors", all.back()),
         factors[static_cast<size_t>(i)]});
  }
  write_average(sets, folder / "mean.safetensors");
  const auto mean = WeightFiles::open(folder / "mean.safetensors");
  ASSERT_EQ(mean.entries().size(), 3u);
  for (const char* name : {"weight", "half"}) {
    at::Tensor sum = torch::zeros_like(all[0].at(name), torch::kDouble);
    for (size_t i = 0; i < all.size(); ++i) {
      sum += all[i].at(name).to(torch::kDouble) * factors[i];
    }
    const at::Tensor got = loaded_tensor(*mean.find(name));
    EXPECT_EQ(got.scalar_type(), all[0].at(name).scalar_type());
    EXPECT_TRUE(got.equal((sum / 4.25).to(got.scalar_type()))) << name;
  }
  EXPECT_EQ(loaded_tensor(*mean.find("count")).item<int64_t>(), 4);
}

TEST(AverageWeights, AreOfOneModel) {
  const TemporaryFolder folder;
  const Tensors tensors = some_tensors(1);
  const auto first = write(folder, "a.safetensors", tensors);
  Tensors other = tensors;
  other["more"] = torch::zeros({2});
  other.erase("half");
  other["weight"] = torch::zeros({5, 3});
  other["count"] = torch::zeros({1});
  const auto second = write(folder, "b.safetensors", other);
  expect_error(
      [&] {
        write_average({{first}, {second}}, folder / "c.safetensors");
      },
      {"a.safetensors",
       "b.safetensors",
       "'half' is only in the first",
       "'more' is only in the second",
       "'weight' is [3, 5] in the first and [5, 3] in the second",
       "'count' is I64 in the first and F32 in the second"});
  EXPECT_FALSE(std::filesystem::exists(folder / "c.safetensors"));
  expect_error(
      [&] {
        write_average({{first, 1}, {first, -1}}, folder / "c.safetensors");
      },
      {"sum of the 2 factors is 0"});
}

} // namespace tessera::sharding::average_weights_test
