// SPDX-License-Identifier: Apache-2.0
// What becomes of a run's checkpoints: the start of another run, a folder of a
// model, a mean.
#include "support/temporary_folder.h"
#include "tessera/runtime/io/atomic_file.h"
#include "tools/trained_run.h"

#include <nlohmann/json.hpp>

#include <cstdint>

namespace tessera::start_from_test {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using tests::program;

void write_inputs(const TemporaryFolder& folder) {
  std::ofstream tokens(folder / "tokens.bin", std::ios::binary);
  for (int i = 0; i < 16 * 24; ++i) {
    const auto token = static_cast<uint16_t>((i + i / 7) % 23);
    tokens.write(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  for (const int layers : {2, 3}) {
    const json config{
        {"model_type", "gpt2"},
        {"architectures", json::array({"GPT2LMHeadModel"})},
        {"vocab_size", 23},
        {"n_embd", 16},
        {"n_layer", layers},
        {"n_head", 2},
        {"n_positions", 16}};
    std::ofstream(folder / ("gpt" + std::to_string(layers) + ".json"))
        << config.dump();
  }
}

tests::LaunchedJob::Result train(
    const TemporaryFolder& folder,
    const std::string& run_name,
    int layers,
    int ranks,
    const json& start_from) {
  json config{
      {"task", "language_model"},
      {"model",
       {{"config",
         (folder / ("gpt" + std::to_string(layers) + ".json")).string()},
        {"max_length", 16}}},
      {"optimizer", {{"lr", 1e-3}}},
      {"training",
       {{"clip_grad_norm", 0},
        {"batch_size", 2},
        {"max_steps", 4},
        {"save_every", 2}}},
      {"data", {{"train", (folder / "tokens.bin").string()}}},
      {"output", {{"folder", (folder / run_name).string()}}}};
  if (!start_from.is_null()) {
    config["model"]["start_from"] = start_from;
  }
  const fs::path file = folder / (run_name + ".json");
  std::ofstream(file) << config.dump();
  return run(
      {program("tessera"),
       "launch",
       "--nproc",
       std::to_string(ranks),
       "--",
       program("tessera"),
       "train",
       file.string()});
}

} // namespace

TEST(StartFrom, ACheckpointOfASmallerModelAndOtherRanks) {
  const TemporaryFolder folder;
  write_inputs(folder);
  auto result = train(folder, "small", 2, 2, nullptr);
  ASSERT_EQ(result.exit_code, 0) << result.output;
  result = train(
      folder,
      "large",
      3,
      1,
      {{"path", (folder / "small/checkpoints").string()},
       {"except", {"final_norm\\..*"}},
       {"rename", {{{"from", "layers\\.1\\.(.*)"}, {"to", "layers.2.$1"}}}},
       {"optimizer_state", true}});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("keep their values"), std::string::npos)
      << result.output;
  const json report =
      json::parse(runtime::read_text_file(folder / "large/start_from.json"));
  // Two of three layers; and tokens and positions.
  EXPECT_EQ(report.at("loaded").size(), 2u * 16 + 2) << report;
  EXPECT_EQ(report.at("with_state").size(), 2u * 16 + 2);
  EXPECT_EQ(report.at("missing").size(), 16u); // the layer between
  EXPECT_EQ(
      report.at("missing").at(0).get<std::string>().substr(0, 8), "layers.1");
  EXPECT_EQ(report.at("not_chosen").size(), 2u);
  // A run that names nothing of the model.
  result = train(
      folder,
      "wrong",
      3,
      1,
      {{"path", (folder / "small/checkpoints").string()},
       {"only", {"layer\\..*"}}});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("'layer\\..*'"), std::string::npos)
      << result.output;

  // Models of checkpoints.
  const std::string model = (folder / "small/model").string();
  const auto convert = [&](const std::vector<std::string>& words) {
    std::vector<std::string> all{program("tessera"), "convert"};
    all.insert(all.end(), words.begin(), words.end());
    return run(all);
  };
  const std::string small = (folder / "small").string();
  const auto weights_in = [&](const char* name) {
    return runtime::read_text_file(folder / name / "model.safetensors");
  };
  result = convert(
      {"--from",
       model,
       "--weights",
       small + "/checkpoints/step-000004",
       "--to",
       (folder / "of_checkpoint").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(weights_in("of_checkpoint") == weights_in("small/model"));
  result = convert(
      {"--from",
       model,
       "--average",
       small,
       small,
       "--to",
       (folder / "same").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(weights_in("same") == weights_in("small/model"));
  result = convert(
      {"--average", small, small, "--to", (folder / "of_runs").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(weights_in("of_runs") == weights_in("small/model"));
  // The model of a checkpoint is that of its run.
  const std::string last = small + "/checkpoints/step-000004";
  result = convert(
      {"--average", last, last, "--to", (folder / "of_checkpoints").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(weights_in("of_checkpoints") == weights_in("small/model"));
  result = convert(
      {"--weights",
       small + "/checkpoints",
       "--to",
       (folder / "of_newest").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(weights_in("of_newest") == weights_in("small/model"));
  EXPECT_NE(
      convert({"--to", (folder / "of_nothing").string()})
          .output.find("--from is missing"),
      std::string::npos);
  result = convert(
      {"--from",
       model,
       "--average",
       small,
       "--last",
       "2",
       "--to",
       (folder / "mean").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_FALSE(weights_in("mean") == weights_in("small/model"));
  EXPECT_FALSE(fs::exists(folder / ".mean.average.safetensors"));
  result = convert(
      {"--average",
       model,
       (folder / "mean").string(),
       "--factors",
       "1",
       "0",
       "--to",
       (folder / "first.safetensors").string()});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  EXPECT_TRUE(
      runtime::read_text_file(folder / "first.safetensors") ==
      weights_in("small/model"));
  result = convert(
      {"--from",
       model,
       "--average",
       small,
       (folder / "large").string(),
       "--to",
       (folder / "other").string()});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.output.find("are not of one model"), std::string::npos)
      << result.output;
}

} // namespace tessera::start_from_test
