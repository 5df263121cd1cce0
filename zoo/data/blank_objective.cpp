// SPDX-License-Identifier: Apache-2.0
#include "tessera/zoo/data/blank_objective.h"

#include "tessera/runtime/core/error.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>

namespace tessera::zoo {

namespace {

using Part = std::pair<int64_t, int64_t>;

constexpr int64_t kLongestBlank = 39;

/// The lengths from 1 to kLongestBlank, Poisson distributed.
int64_t drawn_length(double mean, const Uniforms& draws) {
  std::vector<double> until; // sums of probabilities, but for a factor
  double weight = 1;
  double sum = 0;
  for (int64_t length = 1; length <= kLongestBlank; ++length) {
    weight *= mean / static_cast<double>(length);
    sum += weight;
    until.push_back(sum);
  }
  const double draw = draws() * sum;
  const auto found = std::upper_bound(until.begin(), until.end(), draw);
  return std::min<int64_t>(found - until.begin() + 1, kLongestBlank);
}

/// The documents of a text, without the tokens that end them.
std::vector<Part> documents_of(
    std::span<const int64_t> text,
    const std::vector<int64_t>& starts,
    const std::optional<int64_t>& end_token) {
  std::vector<Part> documents;
  int64_t begin = 0;
  const auto close = [&](int64_t end) {
    if (end > begin) {
      documents.emplace_back(begin, end);
    }
  };
  auto start = starts.begin();
  for (size_t i = 0; i < text.size(); ++i) {
    const auto position = static_cast<int64_t>(i);
    if (start != starts.end() && *start == position) {
      close(position);
      begin = position;
      ++start;
    }
    if (end_token && text[i] == *end_token) {
      close(position);
      begin = position + 1;
    }
  }
  close(static_cast<int64_t>(text.size()));
  return documents;
}

std::vector<Part> short_blanks(
    const std::vector<Part>& documents,
    const BlankOptions& options,
    int64_t most,
    const Uniforms& draws) {
  std::vector<Part> blanks;
  int64_t tokens = 0;
  int64_t in_blanks = 0;
  for (const auto& [begin, end] : documents) {
    tokens += end - begin;
    const auto wanted =
        static_cast<int64_t>(options.ratio * static_cast<double>(tokens));
    std::vector<int64_t> lengths;
    int64_t sum = 0;
    while (in_blanks < wanted &&
           static_cast<int64_t>(blanks.size() + lengths.size()) < most) {
      const int64_t length = drawn_length(options.mean_length, draws);
      if (sum + length + static_cast<int64_t>(lengths.size()) + 1 >
          end - begin) {
        break;
      }
      lengths.push_back(length);
      sum += length;
      in_blanks += length;
    }
    // Room for them with a token between any two.
    const auto count = static_cast<int64_t>(lengths.size());
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < count; ++i) {
      offsets.push_back(below(draws, end - begin - sum - count + 2));
    }
    std::sort(offsets.begin(), offsets.end());
    int64_t before = begin;
    for (size_t i = 0; i < lengths.size(); ++i) {
      const int64_t from = before + offsets[i];
      blanks.emplace_back(from, from + lengths[i]);
      before += lengths[i] + 1;
    }
  }
  if (blanks.empty() && !documents.empty()) {
    const auto& [begin, end] = *std::max_element(
        documents.begin(), documents.end(), [](const Part& a, const Part& b) {
          return a.second - a.first < b.second - b.first;
        });
    const int64_t position = begin + below(draws, end - begin);
    blanks.emplace_back(position, position + 1);
  }
  return blanks;
}

template <typename Element>
void shuffle(std::vector<Element>& elements, const Uniforms& draws) {
  for (size_t i = elements.size(); i > 1; --i) {
    const auto other =
        static_cast<size_t>(below(draws, static_cast<int64_t>(i)));
    std::swap(elements[i - 1], elements[other]);
  }
}

std::vector<Part> sentence_blanks(
    std::span<const int64_t> text,
    const std::vector<Part>& documents,
    const std::vector<bool>& ends_sentence,
    double ratio,
    int64_t most,
    const Uniforms& draws) {
  std::vector<Part> sentences;
  for (const auto& [begin, end] : documents) {
    int64_t last = begin;
    for (int64_t i = begin; i < end; ++i) {
      const auto token = static_cast<size_t>(text[static_cast<size_t>(i)]);
      if (ends_sentence[token] || i + 1 == end) {
        sentences.emplace_back(last, i + 1);
        last = i + 1;
      }
    }
  }
  shuffle(sentences, draws);
  const auto wanted =
      static_cast<int64_t>(ratio * static_cast<double>(text.size()));
  int64_t in_blanks = 0;
  size_t taken = 0;
  while (taken < sentences.size() && static_cast<int64_t>(taken) < most) {
    in_blanks += sentences[taken].second - sentences[taken].first;
    ++taken;
    if (in_blanks >= wanted) {
      break;
    }
  }
  sentences.resize(taken);
  std::sort(sentences.begin(), sentences.end());
  return sentences;
}

} // namespace

int64_t most_blanks(int64_t text_tokens, const BlankOptions& options) {
  return static_cast<int64_t>(std::ceil(
             1.5 * options.ratio * static_cast<double>(text_tokens) /
             std::max(1.0, options.mean_length))) +
         2;
}

BlankKind drawn_kind(const BlankOptions& options, const Uniforms& draws) {
  const double draw = draws() * (options.short_share + options.sentence_share +
                                 options.document_share);
  return draw < options.short_share ? BlankKind::kShort
         : draw < options.short_share + options.sentence_share
             ? BlankKind::kSentences
             : BlankKind::kDocument;
}

std::vector<Part> drawn_blanks(
    BlankKind kind,
    std::span<const int64_t> text,
    const std::vector<int64_t>& starts,
    const BlankVocabulary& vocabulary,
    const BlankOptions& options,
    const Uniforms& draws) {
  const auto count = static_cast<int64_t>(text.size());
  const int64_t most = most_blanks(count, options);
  const auto documents = documents_of(text, starts, vocabulary.document_end);
  std::vector<Part> blanks;
  if (kind == BlankKind::kShort) {
    blanks = short_blanks(documents, options, most, draws);
  } else if (kind == BlankKind::kSentences) {
    blanks = sentence_blanks(
        text, documents, vocabulary.ends_sentence, options.ratio, most, draws);
  } else {
    const int64_t longest = count - 1;
    const auto least = std::clamp<int64_t>(
        static_cast<int64_t>(
            options.least_document * static_cast<double>(count)),
        1,
        longest);
    const int64_t length = least + below(draws, longest - least + 1);
    blanks.emplace_back(count - length, count);
  }
  if (blanks.empty()) {
    blanks.emplace_back(0, 1); // a text of nothing but ends of documents
  }
  return blanks;
}

BlankExample blank_example(
    BlankKind kind,
    std::span<const int64_t> text,
    const std::vector<Part>& blanks,
    const BlankVocabulary& vocabulary,
    const Uniforms& draws) {
  const int64_t mask = kind == BlankKind::kShort ? vocabulary.mask
                       : kind == BlankKind::kSentences
                           ? vocabulary.sentence_mask
                           : vocabulary.document_mask;
  BlankExample example;
  if (vocabulary.start) {
    example.ids.push_back(*vocabulary.start);
  }
  struct Blank {
    Part part;
    int64_t position; ///< of its mask
  };
  std::vector<Blank> order;
  int64_t last = 0;
  for (const Part& blank : blanks) {
    example.ids.insert(
        example.ids.end(), text.begin() + last, text.begin() + blank.first);
    order.push_back({blank, static_cast<int64_t>(example.ids.size())});
    example.ids.push_back(mask);
    last = blank.second;
  }
  example.ids.insert(example.ids.end(), text.begin() + last, text.end());
  const size_t context = example.ids.size();
  example.sep = static_cast<int64_t>(context);
  for (size_t i = 0; i < context; ++i) {
    example.positions.push_back(static_cast<int64_t>(i));
  }
  example.block_positions.resize(context, 0);
  example.labels.resize(context, -100);
  shuffle(order, draws);
  for (const auto& [part, position] : order) {
    const auto& [begin, end] = part;
    const bool ends = kind != BlankKind::kDocument;
    example.ids.push_back(vocabulary.piece_start);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t token = text[static_cast<size_t>(i)];
      example.labels.push_back(token);
      if (ends || i + 1 < end) {
        example.ids.push_back(token);
      }
    }
    if (ends) {
      example.labels.push_back(vocabulary.piece_end);
    }
    const auto tokens = static_cast<size_t>(end - begin + (ends ? 1 : 0));
    for (size_t i = 1; i <= tokens; ++i) {
      example.positions.push_back(position);
      example.block_positions.push_back(static_cast<int64_t>(i));
    }
  }
  return example;
}

BlankObjective::BlankObjective(
    const ObjectiveOptions& options,
    const std::optional<text::Tokenizer>& tokenizer,
    const Head& head,
    const ObjectiveSetting& setting)
    : options_(options.blanks),
      length_(setting.max_length),
      seed_(setting.seed) {
  const int64_t vocab = head.vocab();
  const SpecialTokens special = completed(options.special, tokenizer);
  const auto needed = [&](const std::optional<int64_t>& token,
                          const char* key) {
    return needed_token(token, key, ObjectiveKind::kBlankFilling, vocab);
  };
  vocabulary_.start = special.start;
  if (special.start) {
    needed(special.start, "start");
  }
  vocabulary_.document_end = special.document_end;
  TESSERA_CHECK(
      options_.short_share + options_.sentence_share + options_.document_share >
          0,
      "data.blanks.short, data.blanks.sentences and data.blanks.document are 0; set a share of one of them");
  if (options_.short_share > 0) {
    vocabulary_.mask = needed(special.mask, "mask");
  }
  if (options_.sentence_share > 0) {
    vocabulary_.sentence_mask = needed(special.sentence_mask, "sentence_mask");
  }
  if (options_.document_share > 0) {
    vocabulary_.document_mask = needed(special.document_mask, "document_mask");
  }
  vocabulary_.piece_start = needed(special.piece_start, "piece_start");
  vocabulary_.piece_end = needed(special.piece_end, "piece_end");
  vocabulary_.ends_sentence =
      sentence_ends_of(tokenizer, options_.sentence_ends, vocab);
  const auto& ends = vocabulary_.ends_sentence;
  TESSERA_CHECK(
      options_.sentence_share == 0 ||
          std::find(ends.begin(), ends.end(), true) != ends.end(),
      "data.blanks.sentences is {}, but no token is known to end a sentence; set data.tokenizer, or data.blanks.sentence_ends, or the share to 0",
      options_.sentence_share);
  const auto length_of = [&](int64_t tokens) {
    return tokens + (vocabulary_.start ? 1 : 0) +
           2 * most_blanks(tokens, options_);
  };
  while (length_of(text_tokens_ + 1) <= length_) {
    ++text_tokens_;
  }
  TESSERA_CHECK(
      text_tokens_ >= 2,
      "model.max_length is {}, which has no room for a text, its blanks and what fills them; set at least {}",
      length_,
      length_of(2));
}

ModelInput BlankObjective::make(
    const PackedSamples& texts,
    const std::vector<size_t>& examples,
    int64_t epoch) const {
  const auto rows = static_cast<int64_t>(examples.size());
  ModelInput batch;
  // Nothing attends to what is behind it.
  batch.input_ids =
      torch::full({rows, length_}, vocabulary_.piece_end, torch::kLong);
  batch.labels = torch::full({rows, length_}, -100, torch::kLong);
  batch.position_ids = torch::zeros({rows, 2, length_}, torch::kLong);
  at::Tensor sep = torch::empty({rows}, torch::kLong);
  std::vector<int64_t> text(static_cast<size_t>(text_tokens_));
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < rows; ++i) {
    const size_t example = examples[static_cast<size_t>(i)];
    texts.read(example, epoch, text, starts);
    const Uniforms draws = uniforms_of(example, epoch, seed_);
    const BlankKind kind = drawn_kind(options_, draws);
    const BlankExample row = blank_example(
        kind,
        text,
        drawn_blanks(kind, text, starts, vocabulary_, options_, draws),
        vocabulary_,
        draws);
    const auto write = [&](const std::vector<int64_t>& from,
                           const at::Tensor& to,
                           int64_t offset) {
      std::copy(
          from.begin(), from.end(), to.mutable_data_ptr<int64_t>() + offset);
    };
    write(row.ids, batch.input_ids, i * length_);
    write(row.labels, batch.labels, i * length_);
    write(row.positions, batch.position_ids, 2 * i * length_);
    write(row.block_positions, batch.position_ids, (2 * i + 1) * length_);
    sep[i] = row.sep;
  }
  batch.others["sep"] = sep;
  return batch;
}

} // namespace tessera::zoo
