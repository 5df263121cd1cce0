// SPDX-License-Identifier: Apache-2.0
// GLUE and SuperGLUE by name, from files in the published formats.
#include "tessera/tasks/text_presets.h"

#include "support/expect_error.h"
#include "support/temporary_folder.h"
#include "tessera/tasks/text_batches.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace tessera::tasks::text_presets_test {

namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

class TextPresets : public ::testing::Test {
 protected:
  LabelledTexts read(
      const std::string& preset,
      const std::string& content,
      const std::string& file) const {
    std::ofstream(folder_ / file, std::ios::binary) << content;
    TextClassificationColumns columns;
    columns.preset = &text_preset(preset);
    columns.texts = columns.preset->text_keys.front();
    return read_labelled_texts(
        {folder_ / file},
        columns,
        text_labels_of(columns.preset->problem_type));
  }

  /// "TEXT|SECOND|LABEL" of each text.
  Lines lines(
      const std::string& preset,
      const std::string& content,
      const std::string& file) const {
    Lines found;
    const LabelledTexts texts = read(preset, content, file);
    EXPECT_EQ(texts.classes, text_preset(preset).labels);
    for (const LabelledText& text : texts.texts) {
      found.push_back(
          text.text + "|" + text.second + "|" +
          (text.labels.empty() ? formatted("{}", text.number)
                               : text.labels.front()));
    }
    return found;
  }

  /// What the metrics of a preset are if the texts have these scores.
  TaskScore score(
      const LabelledTexts& texts,
      const std::string& preset,
      const std::vector<double>& scores) const {
    std::vector<LabelledEncoding> examples;
    std::vector<double> logits;
    for (size_t i = 0; i < texts.texts.size(); ++i) {
      const LabelledText& text = texts.texts[i];
      LabelledEncoding& example = examples.emplace_back();
      example.labels = {text.labels.front() == "true" ? 1 : 0};
      example.group = text.group;
      example.candidate = text.candidate;
      example.answers = text.answers;
      logits.insert(logits.end(), {0, scores.at(i)});
    }
    const TextBatches batches(
        examples,
        texts.files,
        zoo::HeadLabels::kClass,
        2,
        text_metrics_for(
            text_preset(preset).metrics, zoo::HeadLabels::kClass, 2),
        {});
    zoo::Score score;
    score.examples = static_cast<int64_t>(examples.size());
    score.outputs = at::tensor(logits, at::kDouble).view({-1, 2});
    return batches.report(score);
  }

  const TemporaryFolder folder_;
};

} // namespace

TEST_F(TextPresets, GlueIsReadFromTablesAndExports) {
  struct Case {
    const char* preset;
    const char* file;
    const char* content;
    Lines expected;
  };
  const Case cases[] = {
      {"glue/cola",
       "train.tsv",
       "gj04\t1\t\tOur \"friends won't buy.\ngj04\t0\t*\tThey drank.\n",
       {"Our \"friends won't buy.||acceptable", "They drank.||unacceptable"}},
      {"glue/cola",
       "train.jsonl",
       R"({"sentence": "They drank.", "label": 0, "idx": 7})",
       {"They drank.||unacceptable"}},
      {"glue/sst2",
       "train.tsv",
       "sentence\tlabel\nhide new secretions \t0\ngood , \"so\t1\n",
       {"hide new secretions ||negative", "good , \"so||positive"}},
      {"glue/mrpc",
       "train.tsv",
       "\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
       "1\t702876\t702977\tAmrozi \"said\tHe said\"\r\n",
       {"Amrozi \"said|He said\"|equivalent"}},
      {"glue/mrpc",
       "train.json",
       R"({"sentence1": "a", "sentence2": "b", "label": 0, "idx": 0})",
       {"a|b|not_equivalent"}},
      {"glue/qqp",
       "train.tsv",
       "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
       "133273\t213221\t213222\tHow?\tWhy?\t1\n",
       {"How?|Why?|duplicate"}},
      {"glue/stsb",
       "train.tsv",
       "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\t"
       "sentence2\tscore\n"
       "0\tmain\tMSRvid\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t4.750\n",
       {"A plane.|An air plane.|4.75"}},
      {"glue/mnli",
       "train.tsv",
       "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\t"
       "sentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\t"
       "sentence2\tlabel1\tgold_label\n"
       "0\t31193\t31193n\tgov\t( a )\t( b )\t(ROOT a)\t(ROOT b)\tA.\tB.\t"
       "entailment\tneutral\n",
       {"A.|B.|neutral"}},
      {"glue/mnli",
       "train.jsonl",
       R"({"premise": "A.", "hypothesis": "B.", "label": 2, "idx": 0})",
       {"A.|B.|contradiction"}},
      {"glue/qnli",
       "train.tsv",
       "index\tquestion\tsentence\tlabel\n0\tWhen?\tThen.\tnot_entailment\n",
       {"When?|Then.|not_entailment"}},
      {"glue/rte",
       "train.tsv",
       "index\tsentence1\tsentence2\tlabel\n0\tNo.\tYes.\tentailment\n",
       {"No.|Yes.|entailment"}},
      {"glue/wnli",
       "train.tsv",
       "index\tsentence1\tsentence2\tlabel\n0\tI stuck.\tIt.\t1\n",
       {"I stuck.|It.|entailment"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.preset);
    EXPECT_EQ(lines(one.preset, one.content, one.file), one.expected);
  }
}

TEST_F(TextPresets, SuperGlueIsReadAsPublishedAndExported) {
  struct Case {
    const char* preset;
    const char* content;
    Lines expected;
  };
  const Case cases[] = {
      {"super_glue/boolq",
       R"({"question": "is it", "passage": "It is.", "idx": 0, "label": true})",
       {"is it|It is.|true"}},
      {"super_glue/boolq",
       R"({"question": "is it", "passage": "No.", "idx": 0, "label": 0})",
       {"is it|No.|false"}},
      {"super_glue/cb",
       R"({"premise": "p", "hypothesis": "h", "label": "neutral", "idx": 1})",
       {"p|h|neutral"}},
      {"super_glue/cb",
       R"({"premise": "p", "hypothesis": "h", "label": 1, "idx": 1})",
       {"p|h|contradiction"}},
      {"super_glue/rte",
       R"({"premise": "p", "hypothesis": "h", "label": "not_entailment"})",
       {"p|h|not_entailment"}},
      {"super_glue/copa",
       R"({"premise": "My body cast a shadow.", "choice1": "The sun rose.",
 "choice2": "The grass grew.", "question": "cause", "label": 0, "idx": 0})",
       {"My body cast a shadow. What was the cause of this?|The sun rose.|true",
        "My body cast a shadow. What was the cause of this?|The grass grew.|false"}},
      {"super_glue/wic",
       R"({"word": "place", "sentence1": "Ünd a place.", "sentence2": "Places!",
 "start1": 6, "start2": 0, "end1": 11, "end2": 6, "label": false})",
       {"Ünd a * place *.|* Places *!|false"}},
      {"super_glue/wsc",
       R"({"text": "Mark told Pete Smith lies, which he believed.", "target":
 {"span2_index": 6, "span1_index": 2, "span1_text": "Pete Smith",
 "span2_text": "he"}, "idx": 0, "label": true})",
       {"Mark told * Pete Smith * lies, which # he # believed.||true"}},
      {"super_glue/wsc",
       R"({"text": "Mark is he", "span1_index": 0, "span1_text": "Mark",
 "span2_index": 2, "span2_text": "he", "idx": 0, "label": 1})",
       {"* Mark * is # he #||true"}},
      {"super_glue/multirc",
       R"({"idx": 0, "version": 1.1, "passage": {"text": "P.", "questions": [
 {"question": "Q?", "answers": [{"text": "a", "idx": 0, "label": 0},
 {"text": "b", "idx": 1, "label": 1}], "idx": 0}]}})",
       {"P.|Q? a|false", "P.|Q? b|true"}},
      {"super_glue/multirc",
       R"({"paragraph": "P.", "question": "Q?", "answer": "a", "label": 1,
 "idx": {"paragraph": 0, "question": 0, "answer": 0}})",
       {"P.|Q? a|true"}},
      {"super_glue/record",
       R"({"source": "x", "passage": {"text": "Ünna met Bo.\n@highlight\nBo won",
 "entities": [{"start": 0, "end": 3}, {"start": 9, "end": 10},
 {"start": 24, "end": 25}]}, "qas": [{"query": "@placeholder was met",
 "answers": [{"start": 9, "end": 10, "text": "Bo"}], "idx": 0}], "idx": 0})",
       {"Ünna met Bo. Bo won|Ünna was met|false",
        "Ünna met Bo. Bo won|Bo was met|true"}},
      {"super_glue/record",
       R"({"passage": "A met B", "query": "@placeholder was met",
 "entities": ["A", "B"], "answers": ["B"], "idx": {}})",
       {"A met B|A was met|false", "A met B|B was met|true"}},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.preset);
    std::string line = one.content;
    std::replace(line.begin(), line.end(), '\n', ' ');
    EXPECT_EQ(lines(one.preset, line, "train.jsonl"), one.expected);
  }
}

TEST_F(TextPresets, WrongFilesAreNamed) {
  expect_error(
      [&] {
        read("glue/rte", "sentence1\tsentence2\tlabel\na\tb\tmaybe\n", "t.tsv");
      },
      {"t.tsv:2: the label is \"maybe\"",
       "entailment",
       "data.preset, glue/rte"});
  expect_error(
      [&] { read("glue/sst2", "sentence\tlabel\na\t-1\n", "t.tsv"); },
      {"t.tsv:2: the label is \"-1\""});
  expect_error(
      [&] { read("super_glue/cb", R"({"premise": "a"})", "t.jsonl"); },
      {"t.jsonl:1: there is no 'hypothesis'"});
  expect_error(
      [&] {
        read(
            "super_glue/wic",
            R"({"sentence1": "a", "sentence2": "b", "start1": 0, "end1": 2})",
            "t.jsonl");
      },
      {"t.jsonl:1: there is no character 2"});
  expect_error(
      [&] {
        read(
            "super_glue/record",
            R"({"passage": {"text": "ab", "entities": [{"start": 1, "end": 2}]}, "qas": []})",
            "t.jsonl");
      },
      {"t.jsonl:1: there is no character 3"});
  expect_error([] { text_preset("glue/sst"); }, {"glue/sst2", "data.preset"});
}

TEST_F(TextPresets, AFolderHasTheFilesOfItsPublication) {
  const auto add = [&](const char* name) {
    std::ofstream(folder_ / name) << "";
  };
  const auto names = [&](const char* preset, bool heldout) {
    Lines found;
    for (const fs::path file :
         preset_files(text_preset(preset), folder_.path(), heldout)) {
      found.push_back(file.filename().string());
    }
    return found;
  };
  expect_error(
      [&] { names("glue/rte", false); },
      {"has none of the files of glue/rte: train.tsv", "data.train"});
  add("train.jsonl");
  add("validation.jsonl");
  EXPECT_EQ(names("glue/rte", false), (Lines{"train.jsonl"}));
  EXPECT_EQ(names("glue/rte", true), (Lines{"validation.jsonl"}));
  add("val.jsonl");
  EXPECT_EQ(names("super_glue/cb", true), (Lines{"val.jsonl"}));
  add("validation_matched.jsonl");
  add("validation_mismatched.jsonl");
  fs::remove(folder_ / "val.jsonl");
  EXPECT_EQ(
      names("glue/mnli", true),
      (Lines{"validation_matched.jsonl", "validation_mismatched.jsonl"}));
  add("train.tsv");
  add("dev_matched.tsv");
  add("dev_mismatched.tsv");
  EXPECT_EQ(names("glue/mnli", false), (Lines{"train.tsv"}));
  EXPECT_EQ(
      names("glue/mnli", true),
      (Lines{"dev_matched.tsv", "dev_mismatched.tsv"}));
}

TEST_F(TextPresets, TextsThatBelongTogetherAreScoredTogether) {
  const auto copa = read(
      "super_glue/copa",
      R"({"premise": "p", "choice1": "a", "choice2": "b", "question": "cause", "label": 0}
{"premise": "p", "choice1": "a", "choice2": "b", "question": "effect", "label": 1}
{"premise": "p", "choice1": "a", "choice2": "b", "question": "effect", "label": 1}
)",
      "copa.jsonl");
  // Both choices look right, but the first one of the first row more so; the
  // second row is wrong, the third right though both look wrong.
  const auto copa_score =
      score(copa, "super_glue/copa", {2, 1, 3, -1, -2, -1}).values;
  EXPECT_NEAR(copa_score.at("heldout_choice_accuracy"), 2.0 / 3, 1e-12);

  const auto multirc = read(
      "super_glue/multirc",
      R"({"passage": {"text": "P", "questions": [{"question": "Q", "answers": [{"text": "a", "label": 1}, {"text": "b", "label": 0}]}, {"question": "R", "answers": [{"text": "c", "label": 1}, {"text": "d", "label": 1}]}]}})",
      "multirc.jsonl");
  const auto multirc_score =
      score(multirc, "super_glue/multirc", {1, -1, 1, -1}).values;
  EXPECT_EQ(multirc_score.at("heldout_group_exact_match"), 0.5);
  EXPECT_NEAR(multirc_score.at("heldout_f1"), 0.8, 1e-12);

  const auto record = read(
      "super_glue/record",
      R"({"passage": "p", "query": "@placeholder", "entities": ["New York", "York", "Rome"], "answers": ["York", "Yorkshire"]}
{"passage": "p", "query": "@placeholder", "entities": ["A", "B"], "answers": ["B"]}
)",
      "record.jsonl");
  const auto record_score =
      score(record, "super_glue/record", {3, 2, 1, -2, -1}).values;
  EXPECT_EQ(record_score.at("heldout_answer_exact_match"), 0.5);
  // "New York" has F1 2/3 with "York".
  EXPECT_NEAR(record_score.at("heldout_answer_f1"), (2.0 / 3 + 1) / 2, 1e-12);
  expect_error(
      [&] {
        LabelledTexts alone = copa;
        alone.texts.front().group = "";
        score(alone, "super_glue/copa", {0, 0, 0, 0, 0, 0});
      },
      {"data.metric", "choice_accuracy", "belong together"});
}

} // namespace tessera::tasks::text_presets_test
