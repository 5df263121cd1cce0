// SPDX-License-Identifier: Apache-2.0
// Files of torch.save against what torch.load has; see
// tests/fixture_makers/torch_files.py.
#include "tessera/sharding/weights/torch_weights.h"

#include "support/expect_error.h"
#include "support/paths.h"
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/weights/load_weights.h"
#include "tessera/sharding/weights/weight_files.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace tessera::sharding::torch_weights_test {

namespace {

namespace fs = std::filesystem;

fs::path torch_fixture(const std::string& file) {
  return fs::path(tests::source_dir()) / "tests/sharding/fixtures/torch" / file;
}

/// The bytes of an entry's elements, row by row.
std::string bytes_of(const WeightEntry& entry) {
  std::string bytes;
  const size_t size = size_of(entry.dtype);
  for (const FileRegion& region : entry.regions) {
    CommonBlock block{
        region.block.sizes, region.block.layout, region.block.layout};
    for_each_segment(block, [&](int64_t here, int64_t, int64_t numel) {
      const auto run = region.data.subspan(
          static_cast<size_t>(here) * size, static_cast<size_t>(numel) * size);
      bytes.append(reinterpret_cast<const char*>(run.data()), run.size());
    });
  }
  return bytes;
}

void expect_equal(const std::string& name) {
  SCOPED_TRACE(name);
  const auto got = WeightFiles::open(torch_fixture(name + ".pt"));
  const auto want = WeightFiles::open(torch_fixture(name + ".safetensors"));
  ASSERT_EQ(got.entries().size(), want.entries().size());
  for (const auto& [tensor, entry] : want.entries()) {
    SCOPED_TRACE(tensor);
    const WeightEntry* found = got.find(tensor);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->dtype, entry.dtype);
    EXPECT_EQ(found->shape, entry.shape);
    EXPECT_EQ(bytes_of(*found), bytes_of(entry));
  }
}

void refuse(const std::string& file, std::initializer_list<const char*> parts) {
  SCOPED_TRACE(file);
  const auto open = [&] { WeightFiles::open(torch_fixture(file)); };
  expect_error(open, {file.c_str()});
  expect_error(open, parts);
}

} // namespace

TEST(TorchWeights, EqualThoseOfTorchLoad) {
  expect_equal("views");
  expect_equal("legacy");
  expect_equal("protocol4");
  expect_equal("module");
}

TEST(TorchWeights, AreReadInSlices) {
  struct NetImpl : torch::nn::Module {
    NetImpl() {
      for (const auto& [name, sizes] :
           std::vector<std::pair<std::string, std::vector<int64_t>>>{
               {"turned", {10, 6}},
               {"every_other", {3, 4}},
               {"rows", {3, 10}},
               {"expanded", {4, 5}},
               {"half", {3, 4}},
               {"bfloat16", {3, 3}},
               {"number", {}},
               {"parameter", {7, 3}}}) {
        register_parameter(name, torch::zeros(sizes));
      }
    }
  };
  LoadWeightsOptions options;
  options.strict = false;
  LazyOptions all;
  all.min_numel = 0;
  const auto want = WeightFiles::open(torch_fixture("views.safetensors"));
  for (const bool is_lazy : {false, true}) {
    const auto net = is_lazy
                         ? lazy([] { return std::make_shared<NetImpl>(); }, all)
                         : std::make_shared<NetImpl>();
    load_weights(*net, torch_fixture("views.pt"), options);
    if (is_lazy) {
      materialize(*net);
    }
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(torch::equal(
          item.value(), loaded_tensor(*want.find(item.key())).to(at::kFloat)))
          << item.key();
      EXPECT_GT(item.value().abs().sum().item<float>(), 0) << item.key();
    }
  }
}

TEST(TorchWeights, ThatWouldRunSomethingAreRefused) {
  const fs::path sign = "/tmp/tessera_was_here";
  fs::remove(sign);
  for (const char* end : {".pt", "_legacy.pt"}) {
    const std::string suffix = end;
    refuse(
        "evil_os_system" + suffix, {"'posix.system'", "nothing of it was run"});
    refuse("evil_eval" + suffix, {"__builtin__.eval'", "state_dict()"});
    refuse("evil_getattr" + suffix, {"getattr'"});
    refuse("evil_exec_in_list" + suffix, {"__builtin__.exec'"});
    refuse("evil_module" + suffix, {"'torch.nn.modules.linear.Linear'"});
  }
  refuse(
      "evil_script.pt",
      {"a module, of torch.jit.save", "save its state_dict()"});
  refuse("evil_complex.pt", {"'angles'", "torch.ComplexFloatStorage"});
  EXPECT_FALSE(fs::exists(sign));
}

// What z.conj().imag and torch._neg_view() are: the storage has the values with
// the other sign, and the metadata says so.
TEST(TorchWeights, ThatAreStoredNegatedAreRefused) {
  for (const char* file :
       {"evil_negated.pt",
        "evil_negated_legacy.pt",
        "evil_negated_parameter.pt"}) {
    refuse(file, {"'part'", "'neg'", "resolve_neg()"});
  }
}

TEST(TorchWeights, ThatAreTruncatedAreRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder / "cut.pt";
  for (const char* file : {"views.pt", "legacy.pt"}) {
    const std::string full = runtime::read_text_file(torch_fixture(file));
    for (size_t size = 0; size < full.size(); size += 31) {
      SCOPED_TRACE(size);
      std::ofstream(path, std::ios::binary) << full.substr(0, size);
      expect_error([&] { WeightFiles::open(path); }, {"cut.pt", "again"});
    }
  }
}

TEST(TorchWeights, ThatLieAboutTheirStorageAreRefused) {
  const TemporaryFolder folder;
  const fs::path path = folder / "lie.pt";
  const auto open_changed = [&](const std::string& from,
                                const std::string& to) {
    std::string text = runtime::read_text_file(torch_fixture("legacy.pt"));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary) << text;
    WeightFiles::open(path);
  };
  // "rows": offset 20, sizes (3, 10), strides (10, 1) of 60 elements.
  const std::string rows = "K\x14K\x03K\x0a\x86";
  expect_error(
      [&] { open_changed(rows, "K\x1fK\x03K\x0a\x86"); },
      {"lie.pt", "'rows'", "beyond its storage of 240 bytes"});
  EXPECT_NO_THROW(open_changed(rows, "K\x1eK\x03K\x0a\x86"));
  expect_error(
      [&] { open_changed("FloatStorage", "ByteaStorage"); },
      {"lie.pt", "'torch.ByteaStorage'"});
  expect_error(
      [&] { open_changed("M\xe9\x03", "M\xea\x03"); },
      {"lie.pt", "the version is the number 1002"});
}

TEST(TorchWeights, WithoutTensorsAreRefused) {
  const TemporaryFolder folder;
  std::ofstream(folder / "text.bin") << "version https://git-lfs";
  expect_error(
      [&] { WeightFiles::open(folder / "text.bin"); },
      {"text.bin", "no file of torch.save"});
  expect_error([&] { WeightFiles::open(folder / "none.pt"); }, {"none.pt"});
  expect_error(
      [&] { WeightFiles::open(folder.path()); },
      {"neither model.safetensors nor pytorch_model.bin"});
}

} // namespace tessera::sharding::torch_weights_test
