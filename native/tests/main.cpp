// Runs every TEST, or those whose name contains one of the arguments.
#include <atomic>
#include <cstdio>
#include <cstring>

#include "check.hpp"

namespace check {
namespace {

Case* first = nullptr;
Case* last = nullptr;
std::atomic<int> failed{0};

bool selected(const Case& test, int count, char** words) {
    if (count <= 1) return true;
    for (int i = 1; i < count; ++i) {
        if (std::strstr(test.name, words[i]) != nullptr) return true;
    }
    return false;
}

}  // namespace

Case::Case(const char* case_name, void (*case_body)())
    : name(case_name), body(case_body), next(nullptr) {
    (last ? last->next : first) = this;
    last = this;
}

void record(bool passed, const char* text, const char* file, int line) {
    if (passed) return;
    ++failed;
    std::fprintf(stderr, "%s:%d: CHECK(%s) failed\n", file, line, text);
}

int failures() { return failed; }

}  // namespace check

int main(int count, char** words) {
    int good = 0;
    int bad = 0;
    for (const check::Case* test = check::first; test != nullptr; test = test->next) {
        if (!check::selected(*test, count, words)) continue;
        const int before = check::failures();
        test->body();
        const bool passed = check::failures() == before;
        if (!passed) std::fprintf(stderr, "FAILED %s\n", test->name);
        ++(passed ? good : bad);
    }
    std::printf("native: %d passed, %d failed\n", good, bad);
    return bad == 0 && good > 0 ? 0 : 1;
}
