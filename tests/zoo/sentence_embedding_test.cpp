// SPDX-License-Identifier: Apache-2.0
// Vectors of texts against sentence-transformers, and its folders.

#include "tessera/zoo/models/sentence_embedding.h"

#include "support/expect_error.h"
#include "zoo/model_fixture.h"

#include <fstream>
#include <utility>

namespace tessera::zoo::sentence_embedding_test {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<const char*, Pooling> kPoolings[] = {
    {"cls", Pooling::kFirst},
    {"max", Pooling::kMax},
    {"mean", Pooling::kMean},
    {"mean_sqrt_len_tokens", Pooling::kMeanRoot},
    {"weightedmean", Pooling::kWeightedMean},
    {"lasttoken", Pooling::kLast}};

/// The folder of a fixture as sentence-transformers keeps it.
class SentenceFolder {
 public:
  explicit SentenceFolder(const std::string& model) {
    fs::copy(ModelFixture(model).folder(), path());
    write(
        "modules.json",
        {{{"idx", 0},
          {"name", "0"},
          {"path", ""},
          {"type", "sentence_transformers.models.Transformer"}},
         {{"idx", 1},
          {"name", "1"},
          {"path", "1_Pooling"},
          {"type", "sentence_transformers.models.Pooling"}},
         {{"idx", 2},
          {"name", "2"},
          {"path", "2_Normalize"},
          {"type", "sentence_transformers.models.Normalize"}}});
  }

  fs::path path() const {
    return folder_.path();
  }

  void write(const std::string& name, const nlohmann::json& json) const {
    fs::create_directories((path() / name).parent_path());
    std::ofstream(path() / name) << json;
  }

 private:
  TemporaryFolder folder_;
};

} // namespace

TEST(SentenceEmbedding, PoolsAsSentenceTransformers) {
  const auto file =
      runtime::SafetensorsFile::open(fixture("sentences.safetensors"));
  const torch::Tensor hidden = fixture_tensor(file, "hidden");
  const torch::Tensor mask = fixture_tensor(file, "mask");
  for (const auto& [name, pooling] : kPoolings) {
    SCOPED_TRACE(name);
    expect_near(pool_tokens(pooling, hidden, mask), fixture_tensor(file, name));
    // Without padding there need be no mask.
    expect_near(
        pool_tokens(pooling, hidden.narrow(0, 0, 1), {}),
        fixture_tensor(file, name).narrow(0, 0, 1));
  }
  const SentenceEmbedding both{{Pooling::kFirst, Pooling::kMean}, true};
  expect_near(both(hidden, mask), fixture_tensor(file, "both"));
}

TEST(SentenceEmbedding, ReadsBothKindsOfFiles) {
  const SentenceFolder folder("bert");
  folder.write(
      "1_Pooling/config.json",
      {{"word_embedding_dimension", 24},
       {"pooling_mode_cls_token", true},
       {"pooling_mode_mean_tokens", true},
       {"pooling_mode_max_tokens", false}});
  const auto old = SentenceEmbedding::from_folder(folder.path(), 24);
  EXPECT_EQ(
      old.poolings, (std::vector<Pooling>{Pooling::kFirst, Pooling::kMean}));
  EXPECT_TRUE(old.normalize);
  for (const auto& [name, pooling] : kPoolings) {
    folder.write(
        "1_Pooling/config.json",
        {{"embedding_dimension", 24}, {"pooling_mode", name}});
    EXPECT_EQ(
        SentenceEmbedding::from_folder(folder.path(), 24).poolings,
        std::vector<Pooling>{pooling});
  }
  const auto plain =
      SentenceEmbedding::from_folder(ModelFixture("bert").folder(), 24);
  EXPECT_EQ(plain.poolings, std::vector<Pooling>{Pooling::kMean});
  EXPECT_FALSE(plain.normalize);
}

// The base of whatever head the folder's model has.
TEST(SentenceEncoder, PoolsWhatAModelMakes) {
  for (const auto& [name, last] :
       {std::pair("bert", "hidden_states.2"),
        std::pair("gpt2", "hidden_states.2"),
        std::pair("t5_classifier", "encoder_last_hidden_state"),
        std::pair("llama_classifier", "hidden_states.2")}) {
    SCOPED_TRACE(name);
    const SentenceFolder folder(name);
    folder.write("1_Pooling/config.json", {{"pooling_mode", "lasttoken"}});
    auto encoder = SentenceEncoder::from_folder(folder.path());
    const ModelFixture reference(name);
    ModelInput input = reference.input();
    input.labels = torch::Tensor();
    const torch::Tensor vectors = encoder.forward(input);
    const torch::Tensor expected = pool_tokens(
        Pooling::kLast,
        reference.tensors("out.").at(last),
        input.attention_mask);
    expect_near(vectors, expected / expected.norm(2, {-1}, /*keepdim=*/true));
    EXPECT_TRUE(vectors.requires_grad());
  }
}

TEST(SentenceEmbedding, NamesWhatIsWrong) {
  const SentenceFolder folder("bert");
  const auto read = [&] { SentenceEmbedding::from_folder(folder.path(), 24); };
  expect_error(read, {"1_Pooling", "does not exist"});
  const auto with = [&](const nlohmann::json& config) {
    folder.write("1_Pooling/config.json", config);
    return read;
  };
  expect_error(
      with({{"pooling_mode", "median"}}), {"config.json", "median", "cls"});
  expect_error(with({{"pooling_mode", 7}}), {"config.json", "7"});
  expect_error(
      with({{"word_embedding_dimension", 25}}), {"is 25", "24 features"});
  expect_error(with({{"include_prompt", false}}), {"include_prompt"});
  const auto modules = [&](const char* path, const char* type) {
    folder.write("modules.json", {{{"path", path}, {"type", type}}});
    return read;
  };
  expect_error(modules("", "x.Dense"), {"modules.json", "Dense"});
  expect_error(modules("../x", "x.Transformer"), {"modules.json", "../x"});
  expect_error(modules("..", "x.Pooling"), {"modules.json"});
  folder.write("modules.json", {{"a", 1}});
  expect_error(read, {"modules.json", "not a list"});
}

} // namespace tessera::zoo::sentence_embedding_test
