// SPDX-License-Identifier: Apache-2.0
// Folders that are damaged, or made to do harm: each one is either loaded, and
// computes, or refused with an error that names the file; nothing crashes, and
// no memory is asked for that the checkpoint does not have.

#include "support/expect_error.h"
#include "tessera/runtime/memory/cpu_memory_counter.h"
#include "zoo/model_fixture.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>

namespace tessera::zoo {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// More than these tiny models need for anything, and less than any size that
/// is wrong asks for.
constexpr int64_t kMostBytes = int64_t{32} << 20;

class Numbers {
 public:
  explicit Numbers(uint64_t seed) : engine_(seed) {}

  size_t below(size_t bound) {
    return engine_() % bound;
  }
  template <typename Values>
  const auto& of(const Values& values) {
    return values[below(values.size())];
  }

 private:
  std::mt19937_64 engine_;
};

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// A fixture's files in a folder of their own, of which some are replaced.
class Hostile {
 public:
  explicit Hostile(const std::string& name) : reference_(name) {
    fs::copy(reference_.folder(), folder_.path());
    fs::remove(folder_.path() / "expected.safetensors");
  }

  fs::path path(const std::string& file) const {
    return folder_.path() / file;
  }
  std::string original(const std::string& file) const {
    return read_text_file(reference_.folder() / file);
  }

  /// Counts what became of the folder.
  void load(const std::string& what) {
    SCOPED_TRACE(what);
    const int64_t before = cpu_bytes_live();
    reset_cpu_bytes_peak();
    try {
      compute();
      ++loaded_;
    } catch (const Error& error) {
      ++refused_;
      EXPECT_NE(
          std::string(error.what()).find(folder_.path().string()),
          std::string::npos)
          << "the file is not named: " << error.what();
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an error of ours: " << error.what();
    }
    EXPECT_LT(cpu_bytes_peak() - before, kMostBytes);
  }

  int loaded() const {
    return loaded_;
  }
  int refused() const {
    return refused_;
  }

 private:
  void compute() {
    const auto model = from_pretrained(folder_.path());
    ModelInput input;
    input.input_ids = torch::zeros({1, 3}, torch::kLong);
    try {
      const torch::NoGradGuard no_grad;
      model->forward(input);
    } catch (const Error&) {
      // This model takes something else, or less, and says so.
    }
  }

  ModelFixture reference_;
  TemporaryFolder folder_;
  int loaded_ = 0;
  int refused_ = 0;
};

/// What a field may be turned into, as text: some are no JSON.
const std::vector<std::string>& values() {
  static const std::vector<std::string> all = {
      "0",
      "1",
      "2",
      "3",
      "-1",
      "-2",
      "7",
      "17",
      "24",
      "61",
      "100",
      "1000",
      "32768",
      "1048576",
      "268435456",
      "268435457",
      "2147483648",
      "1099511627776",
      "9223372036854775807",
      "9223372036854775808",
      "-9223372036854775808",
      "18446744073709551615",
      "0.5",
      "1.5",
      "-0.1",
      "1e-320",
      "1e300",
      "1e999",
      "NaN",
      "Infinity",
      "true",
      "false",
      "null",
      "\"\"",
      "\"gelu\"",
      "\"nonsense\"",
      "\"\\u0000\"",
      "[]",
      "[1]",
      "[[[]]]",
      "[1, \"a\", null]",
      "{}",
      "{\"a\": 1}",
      "{\"rope_type\": \"yarn\", \"factor\": -1}",
      "{\"rope_type\": \"dynamic\", \"factor\": 1e300}",
      "[\"BertModel\"]",
      "[7]",
      "\"../../etc/passwd\""};
  return all;
}

/// config.json with some fields replaced.
std::string with_fields(
    const json& config,
    const std::map<std::string, std::string>& replaced) {
  std::string text = "{";
  for (const auto& [key, value] : config.items()) {
    const auto found = replaced.find(key);
    text += (text.size() > 1 ? ", " : "") + json(key).dump() + ": " +
            (found == replaced.end() ? value.dump() : found->second);
  }
  for (const auto& [key, value] : replaced) {
    if (!config.contains(key)) {
      text += ", " + json(key).dump() + ": " + value;
    }
  }
  return text + "}";
}

class HostileFolders : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    install_cpu_memory_counter();
  }
};

class HostileFields : public HostileFolders,
                      public ::testing::WithParamInterface<const char*> {};

/// Fields that files may have beside those of the fixtures.
const std::vector<std::string> kMoreFields = {
    "rope_scaling",
    "rope_parameters",
    "rope_theta",
    "num_labels",
    "id2label",
    "head_dim",
    "sliding_window",
    "use_sliding_window",
    "layer_types",
    "problem_type",
    "n_inner",
    "rotary_dim",
    "classifier_dropout",
    "partial_rotary_factor",
    "num_key_value_heads",
    "torch_dtype",
    "expert_capacity_factor",
    "word_embed_proj_dim",
    "mlp_only_layers"};

std::string file_of_header(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + data;
}

} // namespace

TEST_P(HostileFields, AreRefusedOrRight) {
  Hostile hostile(GetParam());
  const json config = json::parse(hostile.original("config.json"));
  std::vector<std::string> keys = kMoreFields;
  for (const auto& [key, value] : config.items()) {
    keys.push_back(key);
  }
  Numbers numbers(1);
  for (int i = 0; i < 250; ++i) {
    std::map<std::string, std::string> replaced;
    for (size_t n = 1 + numbers.below(3); n > 0; --n) {
      const std::string& key = numbers.of(keys);
      replaced[key] = numbers.of(values());
    }
    std::string what;
    for (const auto& [key, value] : replaced) {
      what += key + ": " + value + "; ";
    }
    write(hostile.path("config.json"), with_fields(config, replaced));
    hostile.load(what);
  }
  // Each field by itself, in one of the ways that ask for the most.
  for (const std::string& key : keys) {
    for (const char* const value : {"268435456", "1099511627776", "-1"}) {
      write(hostile.path("config.json"), with_fields(config, {{key, value}}));
      hostile.load(key + ": " + value);
    }
    json without = config;
    without.erase(key);
    write(hostile.path("config.json"), without.dump());
    hostile.load("no " + key);
  }
  EXPECT_GT(hostile.refused(), 50);
  EXPECT_GT(hostile.loaded(), 10);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    HostileFields,
    ::testing::Values(
        "bert_classifier",
        "chatglm",
        "cpm1",
        "cpm2",
        "glm_2021",
        "gpt2",
        "gptj",
        "llama_yarn",
        "longformer",
        "mt5",
        "opt_350m",
        "qwen2",
        "qwen2_moe",
        "t5_classifier"),
    [](const auto& one) { return std::string(one.param); });

TEST_F(HostileFolders, HaveTextsThatAreCutOrGarbled) {
  Hostile hostile("llama_yarn");
  const std::string text = hostile.original("config.json");
  Numbers numbers(2);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = text;
    switch (numbers.below(4)) {
      case 0:
        damaged.resize(numbers.below(damaged.size()));
        break;
      case 1:
        damaged[numbers.below(damaged.size())] =
            static_cast<char>(numbers.below(256));
        break;
      case 2:
        damaged.insert(
            numbers.below(damaged.size()),
            std::string(1, static_cast<char>(numbers.below(256))));
        break;
      default: {
        const size_t from = numbers.below(damaged.size());
        damaged.erase(from, numbers.below(20));
      }
    }
    write(hostile.path("config.json"), damaged);
    hostile.load(damaged);
  }
  for (const std::string& damaged :
       {std::string(),
        std::string("[]"),
        std::string("null"),
        std::string(100'000, '['),
        "{\"a\": " + std::string(100'000, '[') + std::string(100'000, ']') +
            "}",
        std::string("\xff\xfe{}"),
        std::string("{\"model_type\": \"llama\", \"model_type\": \"bert\"}"),
        std::string("{\"model_type\": \"\xc3\x28\"}"),
        std::string("{\"model_type\": {\"bert\": 1}}"),
        std::string("{\"model_type\": \"../bert\"}")}) {
    write(hostile.path("config.json"), damaged);
    hostile.load(damaged.substr(0, 60));
  }
  EXPECT_GT(hostile.refused(), 200);
}

TEST_F(HostileFolders, HaveHeadersThatLie) {
  Hostile hostile("gpt2");
  const std::string file = hostile.original("model.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const json header = json::parse(file.substr(8, length));
  const std::string data = file.substr(8 + length);
  std::vector<std::string> names;
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      names.push_back(name);
    }
  }
  const std::vector<json> sizes = {
      0,
      1,
      -1,
      3,
      24,
      61,
      uint64_t{1} << 20,
      uint64_t{1} << 32,
      uint64_t{1} << 62,
      INT64_MAX,
      UINT64_MAX,
      0.5,
      "24",
      nullptr,
      json::array()};
  const std::vector<json> dtypes = {
      "F64",
      "F16",
      "BF16",
      "I64",
      "U8",
      "BOOL",
      "F8_E4M3",
      "I32",
      "",
      "f32",
      7,
      nullptr,
      json::object()};
  Numbers numbers(3);
  for (int i = 0; i < 600; ++i) {
    json changed = header;
    const std::string& name = numbers.of(names);
    json& entry = changed[name];
    switch (numbers.below(7)) {
      case 0:
        entry["shape"][numbers.below(entry["shape"].size())] =
            numbers.of(sizes);
        break;
      case 1:
        entry["shape"].push_back(numbers.of(sizes));
        break;
      case 2: // The product is that of the data modulo 2^64.
        entry["shape"] = {uint64_t{1} << 32, uint64_t{1} << 32, 24};
        break;
      case 3:
        entry["data_offsets"][numbers.below(2)] = numbers.of(sizes);
        break;
      case 4: // Two tensors over the same bytes.
        entry["data_offsets"] = header[numbers.of(names)]["data_offsets"];
        break;
      case 5:
        entry["dtype"] = numbers.of(dtypes);
        break;
      default:
        changed.erase(name);
        changed[numbers.of(names) + (numbers.below(2) == 0 ? "" : ".x")] =
            header[name];
    }
    write(
        hostile.path("model.safetensors"),
        file_of_header(changed.dump(), data));
    hostile.load(name + ": " + changed.value(name, json()).dump());
  }
  // A key that stands twice, lengths that are wrong, and ends that are missing.
  const std::string text = header.dump();
  const std::string twice = "{" + json(names[0]).dump() + ": " +
                            header[names[0]].dump() + ", " + text.substr(1);
  write(hostile.path("model.safetensors"), file_of_header(twice, data));
  hostile.load("a tensor twice");
  for (int i = 0; i < 300; ++i) {
    std::string damaged = file;
    if (numbers.below(2) == 0) {
      damaged.resize(numbers.below(damaged.size()));
    } else {
      damaged[numbers.below(8 + length)] =
          static_cast<char>(numbers.below(256));
    }
    write(hostile.path("model.safetensors"), damaged);
    hostile.load("damage " + std::to_string(i));
  }
  EXPECT_GT(hostile.refused(), 500);
}

TEST_F(HostileFolders, HaveAnIndexThatLies) {
  Hostile hostile("gpt2");
  const std::string file = hostile.original("model.safetensors");
  fs::rename(hostile.path("model.safetensors"), hostile.path("a.safetensors"));
  fs::create_directory(hostile.path("folder.safetensors"));
  write(hostile.path("empty.safetensors"), "");
  // One that a path out of the folder would reach.
  const fs::path outside =
      hostile.path("").parent_path().parent_path() / "outside.safetensors";
  write(outside, file);
  json right = {{"metadata", json::object()}, {"weight_map", json::object()}};
  const auto tensors = SafetensorsFile::open(hostile.path("a.safetensors"));
  for (const SafetensorsEntry& entry : tensors.entries()) {
    right["weight_map"][entry.name] = "a.safetensors";
  }
  const std::string name = tensors.entries().front().name;
  const auto load = [&](const json& index) {
    write(hostile.path("model.safetensors.index.json"), index.dump());
    hostile.load(index.dump().substr(0, 200));
  };
  load(right);
  EXPECT_EQ(hostile.loaded(), 1);
  for (const json& place : std::vector<json>{
           "b.safetensors",
           "",
           ".",
           "..",
           "../outside.safetensors",
           "./a.safetensors",
           "x/../a.safetensors",
           outside.string(),
           "folder.safetensors",
           "empty.safetensors",
           "config.json",
           "/dev/zero",
           std::string("a.safetensors\0x", 15),
           7,
           nullptr,
           json::array({"a.safetensors"}),
           json::object(),
           true}) {
    json wrong = right;
    wrong["weight_map"][name] = place;
    load(wrong);
  }
  json missing = right;
  missing["weight_map"].erase(name);
  load(missing);
  json more = right;
  more["weight_map"]["not.there"] = "a.safetensors";
  load(more);
  for (const json& map : std::vector<json>{
           json::object(), json::array(), nullptr, 7, "a.safetensors"}) {
    load({{"weight_map", map}});
    load(map);
  }
  EXPECT_EQ(hostile.loaded(), 1);
  fs::remove(outside);
}

} // namespace tessera::zoo
