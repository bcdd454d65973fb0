// Runs the tests of the C++ core. Prints what failed, and exits with status 1 if anything did.

#include "check.h"
#include "tests.h"

int main() {
    test_interface();
    test_forward();
    test_backward();
    printf("%lld passed, %lld failed\n", (long long)tally.passed, (long long)tally.failed);
    return tally.failed != 0;
}
