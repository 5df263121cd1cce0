// SPDX-License-Identifier: Apache-2.0
#include "tessera/runtime/io/pickle.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <utility>

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/byte_reader.h"

namespace tessera::runtime {

namespace {

constexpr std::string_view kPickleRemedy =
    "; the file is damaged or was not written completely: fetch it again";

/// A name for a message: short, printable.
std::string printable_name(std::string_view text) {
  constexpr size_t kMost = 100;
  std::string shown;
  for (const char c : text.substr(0, kMost)) {
    shown += c >= ' ' && c <= '~' ? c : '?';
  }
  return shown + (text.size() > kMost ? "..." : "");
}

} // namespace

std::string_view PickleNode::made_by() const {
  return kind == PickleKind::kObject ? std::string_view(of->text)
                                     : std::string_view();
}

const PickleNode* PickleNode::find(std::string_view key) const {
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->is_string(key)) {
      return items[i + 1];
    }
  }
  return nullptr;
}

const PickleNode* PickleNode::attribute(std::string_view name) const {
  return state == nullptr ? nullptr : state->find(name);
}

std::string show(const PickleNode& node) {
  switch (node.kind) {
    case PickleKind::kNone:
      return "None";
    case PickleKind::kBool:
      return node.integer != 0 ? "True" : "False";
    case PickleKind::kInt:
      return "the number " + std::to_string(node.integer);
    case PickleKind::kFloat:
      return "the number " + formatted("{}", node.number);
    case PickleKind::kString:
      return "the string '" + printable_name(node.text) + "'";
    case PickleKind::kBytes:
      return "bytes";
    case PickleKind::kTuple:
      return formatted("a tuple of {}", node.items.size());
    case PickleKind::kList:
      return formatted("a list of {}", node.items.size());
    case PickleKind::kDict:
      return formatted("a dictionary of {}", node.items.size() / 2);
    case PickleKind::kSet:
      return "a set";
    case PickleKind::kGlobal:
      return printable_name(node.text);
    case PickleKind::kObject:
      return "an object of " + printable_name(node.of->text);
    case PickleKind::kPersistent:
      return "a storage";
  }
  return "";
}

/// Executes the opcodes on a stack of values.
class PickleReader {
 public:
  PickleReader(
      Pickle& pickle,
      std::span<const std::byte> bytes,
      std::string_view source,
      const Pickle::IsListed& is_listed)
      : pickle_(pickle),
        size_(bytes.size()),
        in_(bytes, source),
        source_(source),
        is_listed_(is_listed) {
    constant(PickleKind::kNone, 0, none_);
    constant(PickleKind::kBool, 1, true_);
    constant(PickleKind::kBool, 0, false_);
  }

  void read() {
    for (;;) {
      at_ = size_ - in_.left();
      const auto opcode = static_cast<char>(in_.u8());
      if (opcode == '.') {
        pickle_.root_ = pop();
        pickle_.bytes_ = size_ - in_.left();
        return;
      }
      if (!read_number(opcode) && !read_text(opcode) &&
          !read_container(opcode) && !read_object(opcode) &&
          !read_memo(opcode) && !read_control(opcode)) {
        fail(formatted(
            "the opcode 0x{:02x} is none that pickles of tensors have",
            static_cast<int>(static_cast<uint8_t>(opcode))));
      }
    }
  }

 private:
  using Node = PickleNode*;

  [[noreturn]] void fail(const std::string& label) const {
    TESSERA_FAIL(
        "{}: at byte {} of the pickle, {}{}",
        source_,
        at_,
        label,
        kPickleRemedy);
  }

  void constant(PickleKind kind, int64_t value, Node& node) {
    node = &pickle_.nodes_.emplace_back();
    node->kind = kind;
    node->integer = value;
  }

  Node make(PickleKind kind) {
    Node node = &pickle_.nodes_.emplace_back();
    node->kind = kind;
    return node;
  }
  void push(Node node) {
    stack_.push_back(node);
  }
  Node pop() {
    Node node = top();
    stack_.pop_back();
    return node;
  }
  /// Values below a mark belong to what it began.
  Node top() const {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
      fail("a value is missing on the stack");
    }
    return stack_.back();
  }
  std::vector<const PickleNode*> pop_to_mark() {
    if (marks_.empty()) {
      fail("there is no mark on the stack");
    }
    const auto first =
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const PickleNode*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }

  void push_integer(int64_t value) {
    Node node = make(PickleKind::kInt);
    node->integer = value;
    push(node);
  }
  /// Two's complement, little endian.
  void push_long(uint64_t count) {
    const auto bytes = in_.take(count);
    Node node = make(PickleKind::kInt);
    if (count > 8) {
      node->text = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    } else {
      uint64_t value =
          count > 0 && std::to_integer<int>(bytes.back()) >= 0x80 ? ~0ULL : 0;
      for (size_t i = bytes.size(); i-- > 0;) {
        value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
      }
      node->integer = static_cast<int64_t>(value);
    }
    push(node);
  }
  void push_decimal(std::string text) {
    if (text == "00" || text == "01") { // Protocol 0 writes booleans so.
      push(text == "01" ? true_ : false_);
      return;
    }
    if (text.ends_with('L')) {
      text.pop_back();
    }
    int64_t value = 0;
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, value).ptr != end || text.empty()) {
      fail("'" + printable_name(text) + "' is not a number");
    }
    push_integer(value);
  }
  void push_float(double value) {
    Node node = make(PickleKind::kFloat);
    node->number = value;
    push(node);
  }
  void push_text(PickleKind kind, std::string text) {
    Node node = make(kind);
    node->text = std::move(text);
    push(node);
  }
  void push_quoted(const std::string& text) {
    if (text.size() < 2 || text.front() != text.back() ||
        text.find('\\') != std::string::npos) {
      fail("a string of protocol 0 is not a quoted text without escapes");
    }
    push_text(PickleKind::kString, text.substr(1, text.size() - 2));
  }

  bool read_number(char opcode) {
    switch (opcode) {
      case 'N':
        push(none_);
        return true;
      case '\x88':
        push(true_);
        return true;
      case '\x89':
        push(false_);
        return true;
      case 'I':
      case 'L':
        push_decimal(in_.line());
        return true;
      case 'J':
        push_integer(static_cast<int32_t>(in_.u32()));
        return true;
      case 'K':
        push_integer(in_.u8());
        return true;
      case 'M':
        push_integer(in_.u16());
        return true;
      case '\x8a':
        push_long(in_.u8());
        return true;
      case '\x8b':
        push_long(in_.u32());
        return true;
      case 'F': {
        const std::string text = in_.line();
        double value = 0;
        const char* end = text.data() + text.size();
        if (std::from_chars(text.data(), end, value).ptr != end) {
          fail("'" + printable_name(text) + "' is not a number");
        }
        push_float(value);
        return true;
      }
      case 'G':
        push_float(in_.big_endian_double());
        return true;
      default:
        return false;
    }
  }

  bool read_text(char opcode) {
    switch (opcode) {
      case 'S':
        push_quoted(in_.line());
        return true;
      case 'V':
        push_text(PickleKind::kString, in_.line());
        return true;
      case 'U': // Strings of Python 2.
      case '\x8c':
        push_text(PickleKind::kString, in_.text(in_.u8()));
        return true;
      case 'T':
      case 'X':
        push_text(PickleKind::kString, in_.text(in_.u32()));
        return true;
      case '\x8d':
        push_text(PickleKind::kString, in_.text(in_.u64()));
        return true;
      case 'C':
        push_text(PickleKind::kBytes, in_.text(in_.u8()));
        return true;
      case 'B':
        push_text(PickleKind::kBytes, in_.text(in_.u32()));
        return true;
      case '\x8e':
      case '\x96':
        push_text(PickleKind::kBytes, in_.text(in_.u64()));
        return true;
      default:
        return false;
    }
  }

  void push_items(PickleKind kind, std::vector<const PickleNode*> items) {
    if (kind == PickleKind::kDict && items.size() % 2 != 0) {
      fail("a dictionary has a key without a value");
    }
    Node node = make(kind);
    node->items = std::move(items);
    push(node);
  }
  void push_tuple(size_t size) {
    std::vector<const PickleNode*> items(size);
    for (size_t i = size; i-- > 0;) {
      items[i] = pop();
    }
    push_items(PickleKind::kTuple, std::move(items));
  }
  void extend(PickleKind kind, const std::vector<const PickleNode*>& items) {
    Node node = top();
    if (!node->is(kind) && !node->is(PickleKind::kObject)) {
      fail("elements are put into " + show(*node));
    }
    if (kind == PickleKind::kDict && items.size() % 2 != 0) {
      fail("a dictionary has a key without a value");
    }
    node->items.insert(node->items.end(), items.begin(), items.end());
  }

  bool read_container(char opcode) {
    switch (opcode) {
      case ']':
        push_items(PickleKind::kList, {});
        return true;
      case '}':
        push_items(PickleKind::kDict, {});
        return true;
      case ')':
        push_tuple(0);
        return true;
      case '\x8f':
        push_items(PickleKind::kSet, {});
        return true;
      case 'l':
        push_items(PickleKind::kList, pop_to_mark());
        return true;
      case 'd':
        push_items(PickleKind::kDict, pop_to_mark());
        return true;
      case 't':
        push_items(PickleKind::kTuple, pop_to_mark());
        return true;
      case '\x91':
        push_items(PickleKind::kSet, pop_to_mark());
        return true;
      case '\x85':
      case '\x86':
      case '\x87':
        push_tuple(static_cast<uint8_t>(opcode) - 0x84u);
        return true;
      case 'a': {
        const PickleNode* item = pop();
        extend(PickleKind::kList, {item});
        return true;
      }
      case 'e':
        extend(PickleKind::kList, pop_to_mark());
        return true;
      case 's': {
        const PickleNode* value = pop();
        const PickleNode* key = pop();
        extend(PickleKind::kDict, {key, value});
        return true;
      }
      case 'u':
        extend(PickleKind::kDict, pop_to_mark());
        return true;
      case '\x90':
        extend(PickleKind::kSet, pop_to_mark());
        return true;
      default:
        return false;
    }
  }

  Node global(const std::string& module, const std::string& name) {
    const std::string full = module + "." + name;
    TESSERA_CHECK(
        is_listed_(full),
        "{}: at byte {} the pickle asks for '{}', which is not among what files of tensors need, so it is refused; nothing of it was run. If you trust the file, load it with PyTorch and save its state_dict() alone, as safetensors or with torch.save",
        source_,
        at_,
        printable_name(full));
    Node node = make(PickleKind::kGlobal);
    node->text = full;
    return node;
  }

  /// What `of` would make of the arguments, as a value.
  void push_object(const PickleNode* of, const PickleNode* arguments) {
    if (!of->is(PickleKind::kGlobal) || !arguments->is(PickleKind::kTuple)) {
      fail(
          formatted("{} would be called with {}", show(*of), show(*arguments)));
    }
    if (of->text == "collections.OrderedDict") {
      push_items(PickleKind::kDict, pairs_in(*arguments));
      return;
    }
    Node node = make(PickleKind::kObject);
    node->of = of;
    node->arguments = arguments;
    push(node);
  }
  /// The keys and values of OrderedDict([[key, value], ...]), as Python 2 wrote
  /// it.
  std::vector<const PickleNode*> pairs_in(const PickleNode& arguments) const {
    std::vector<const PickleNode*> items;
    if (!arguments.items.empty()) {
      for (const PickleNode* pair : arguments.items.front()->items) {
        if (pair->items.size() != 2) {
          fail("an OrderedDict is made of something else than pairs");
        }
        items.insert(items.end(), pair->items.begin(), pair->items.end());
      }
    }
    return items;
  }

  bool read_object(char opcode) {
    switch (opcode) {
      case 'c': {
        const std::string module = in_.line();
        push(global(module, in_.line()));
        return true;
      }
      case '\x93': {
        const PickleNode* name = pop();
        const PickleNode* module = pop();
        if (!name->is(PickleKind::kString) ||
            !module->is(PickleKind::kString)) {
          fail("the name of a global is no string");
        }
        push(global(module->text, name->text));
        return true;
      }
      case 'R':
      case '\x81': {
        const PickleNode* arguments = pop();
        push_object(pop(), arguments);
        return true;
      }
      case '\x92': { // With keyword arguments.
        const PickleNode* keywords = pop();
        const PickleNode* arguments = pop();
        push_object(pop(), arguments);
        if (!keywords->items.empty()) {
          fail("an object is made with keywords");
        }
        return true;
      }
      case 'i': {
        const std::string module = in_.line();
        const PickleNode* of = global(module, in_.line());
        Node arguments = make(PickleKind::kTuple);
        arguments->items = pop_to_mark();
        push_object(of, arguments);
        return true;
      }
      case 'o': {
        Node arguments = make(PickleKind::kTuple);
        arguments->items = pop_to_mark();
        if (arguments->items.empty()) {
          fail("an object has no class");
        }
        const PickleNode* of = arguments->items.front();
        arguments->items.erase(arguments->items.begin());
        push_object(of, arguments);
        return true;
      }
      case 'b': {
        const PickleNode* state = pop();
        Node node = top();
        if (!node->is(PickleKind::kObject) && !node->is(PickleKind::kDict)) {
          fail("attributes are given to " + show(*node));
        }
        node->state = state;
        return true;
      }
      case 'Q': {
        const PickleNode* id = pop();
        Node node = make(PickleKind::kPersistent);
        node->of = id;
        push(node);
        return true;
      }
      default:
        return false;
    }
  }

  void push_memo(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) {
      fail(formatted("value {} is used before it is there", index));
    }
    push(found->second);
  }
  uint64_t memo_index(const std::string& text) {
    uint64_t index = 0;
    const char* end = text.data() + text.size();
    if (std::from_chars(text.data(), end, index).ptr != end || text.empty()) {
      fail("'" + printable_name(text) + "' is not the number of a value");
    }
    return index;
  }

  bool read_memo(char opcode) {
    switch (opcode) {
      case 'p':
        memo_[memo_index(in_.line())] = top();
        return true;
      case 'q':
        memo_[in_.u8()] = top();
        return true;
      case 'r':
        memo_[in_.u32()] = top();
        return true;
      case '\x94':
        memo_[memo_.size()] = top();
        return true;
      case 'g':
        push_memo(memo_index(in_.line()));
        return true;
      case 'h':
        push_memo(in_.u8());
        return true;
      case 'j':
        push_memo(in_.u32());
        return true;
      default:
        return false;
    }
  }

  bool read_control(char opcode) {
    constexpr int kLatestProtocol = 5;
    switch (opcode) {
      case '\x80': {
        const int protocol = in_.u8();
        if (protocol > kLatestProtocol) {
          fail(formatted("the protocol is {}, but 5 is the latest", protocol));
        }
        return true;
      }
      case '\x95': // The length of a frame, which need not be read at once.
        in_.skip(8);
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        if (!marks_.empty() && marks_.back() == stack_.size()) {
          marks_.pop_back();
        } else {
          pop();
        }
        return true;
      case '1':
        pop_to_mark();
        return true;
      case '2':
        push(top());
        return true;
      default:
        return false;
    }
  }

  Pickle& pickle_;
  size_t size_;
  ByteReader in_;
  std::string_view source_;
  const Pickle::IsListed& is_listed_;
  size_t at_ = 0; ///< of the opcode
  std::vector<Node> stack_;
  std::vector<size_t> marks_; ///< heights of the stack
  std::unordered_map<uint64_t, Node> memo_;
  Node none_ = nullptr;
  Node true_ = nullptr;
  Node false_ = nullptr;
};

Pickle::Pickle(
    std::span<const std::byte> bytes,
    std::string_view source,
    const IsListed& is_listed) {
  PickleReader(*this, bytes, source, is_listed).read();
}

} // namespace tessera::runtime
