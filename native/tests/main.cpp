// Every kernel of the library against the plain one. Prints what failed; exit status 1 where something did.

#include "check.h"
#include "tests.h"

int main() {
    test_forward();
    test_backward();
    printf("%lld passed, %lld failed\n", (long long)tally.passed, (long long)tally.failed);
    return tally.failed != 0;
}
